"""What each long-running process of ours needs: logs, and a garbage collector that waits."""
