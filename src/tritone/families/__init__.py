"""One folder per upstream toolkit: network, checkpoint and config reading, export to a bundle. Needs torch."""
