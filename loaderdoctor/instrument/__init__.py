"""Runs the user's loop and measures it: hooks, windows, substituted batches, trials, workers.

`wire`, `system` and `command` are what the command's side needs, and import no torch (but for what
of `system` only the measuring process asks).
"""
