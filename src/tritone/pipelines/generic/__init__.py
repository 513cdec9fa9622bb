"""Generic models: arrays by name in, arrays by name out."""
