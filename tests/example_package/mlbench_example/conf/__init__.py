"""YAML files on Hydra's search path."""
