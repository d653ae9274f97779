"""A task, a sync strategy and a cluster that mlbench does not bring."""
