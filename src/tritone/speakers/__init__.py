"""Speaker embeddings in files and numbers: Kaldi archives, trials, scores, error rates, a store of enrolled speakers."""
