"""Any torch.profiler trace file -> typed columns. Imports no torch."""
