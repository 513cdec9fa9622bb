"""Functions of Python as models: their annotations, their files, and running them."""
