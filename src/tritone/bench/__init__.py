"""Load tests: what to measure, the best way to serve, reports and comparisons."""
