"""What clients do where nobody asks for anything else."""

DEFAULT_TIMEOUT_S = 60.0  # of one request
DEFAULT_RETRIES = 0
DEFAULT_CONCURRENCY = 8  # requests in flight
EMBEDDING_CONCURRENCY = 64  # enough for the server to have a full batch waiting while it computes another
# Small enough to add little to the server's own chunk, large enough that requests do not dominate, in milliseconds.
DEFAULT_CHUNK_MS = 160.0
