"""Resemblyzer's voice encoder: an LSTM over parts of an utterance."""
