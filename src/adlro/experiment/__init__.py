"""The stages put together: scenarios, runs, comparisons, and what `import adlro` offers."""
