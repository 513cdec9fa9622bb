"""Models with random weights, as large as published ones."""
