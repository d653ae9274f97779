"""Code that two or more tasks use today."""
