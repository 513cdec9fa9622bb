"""Network outputs to hypotheses and transcripts, for each kind of model."""
