"""How gradients are combined between workers: a folder a strategy, found by name (docs/extending.md)."""
