"""Whisper's decoding: logits of the next token to the text of a window, greedily, by sampling or with a beam."""
