"""NeMo's Conformer and FastConformer models: CTC, RNN transducers, and token-and-duration transducers."""
