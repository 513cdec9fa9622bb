"""Murmur: small recognisers of speech made of causal convolutions, as a family of Tritone's."""
