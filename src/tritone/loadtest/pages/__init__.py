"""Tables, plots and pages of measurements, comparisons and gates of them, replicas for a load."""
