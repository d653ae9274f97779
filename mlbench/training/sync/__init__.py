"""How gradients are combined between workers: a module a strategy, found by its name."""
