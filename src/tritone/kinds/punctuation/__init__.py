"""Models that write marks behind words."""
