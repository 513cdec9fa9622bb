"""Running the graphs of a bundle: contracts, batches and blocks of audio."""
