"""The REST API and the dashboard, in a process of their own."""
