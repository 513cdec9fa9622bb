"""Search of CTC models: greedy and prefix beam."""
