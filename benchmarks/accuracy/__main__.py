"""The command `python -m benchmarks.accuracy`; see `benchmarks.accuracy.rows`."""

from benchmarks.accuracy.rows import main

main()
