"""Accuracy of the demo models in every mode, precision and size of chunk."""
