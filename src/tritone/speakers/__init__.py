"""Speaker embeddings in files and numbers: Kaldi archives, trials, scores, error rates, enrolled speakers."""
