"""Runs the user's loop and measures it: hooks, windows, substituted batches, trials, workers.

`bench.py`, `protocol.py`, `machine.py` and `worker_records.py` import no torch: they are what
the other side of the pipe needs.
"""
