"""What `import mlbench` offers: runs, studies, comparisons and predictions from Python (docs/python.md)."""
