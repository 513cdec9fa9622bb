"""Scores that a beam search adds to the network's: language model and hotwords."""
