"""Functions of Python as models: their annotations, their packages, and calling them."""
