"""A sync strategy and a cluster that mlbench does not bring."""
