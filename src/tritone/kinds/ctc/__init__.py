"""CTC models, with a decoder that ranks hypotheses or without."""
