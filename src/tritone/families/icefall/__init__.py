"""icefall's transducers: reworked conformer and zipformer2, stateless predictor, joiner."""
