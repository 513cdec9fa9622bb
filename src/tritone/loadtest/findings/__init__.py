"""Results of load tests."""
