"""Load on a served model, and what came of it: requests in flight, at a rate, or streams in real time."""
