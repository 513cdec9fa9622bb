"""Search in transducers: frames of an encoder, a predictor and a joiner to hypotheses."""
