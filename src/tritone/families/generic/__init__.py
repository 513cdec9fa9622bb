"""Models of any use, as bundles of kind generic: one module for each form that they come in."""
