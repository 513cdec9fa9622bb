"""Endurance of a served model: what clients get, and what the server keeps, while both are treated badly.

python -m benchmarks.endurance requests | streams | pauses | kills | drains | files | all

A part starts `tritone serve` as an operator would, sends work whose answers were computed in this process before, does
the harm that it is named after, and counts: wrong answers, errors, seconds until clients are told and served again,
memory, shared memory and descriptors over time.
"""
