"""Load of streams in real time."""
