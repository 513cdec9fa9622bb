"""The inside of a served model: requests ↔ pipeline. `offline` and `streaming` only import within Triton."""
