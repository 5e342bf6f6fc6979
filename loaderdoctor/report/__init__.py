"""What a run says: report.json, the console, TensorBoard and Perfetto files. Computes nothing."""
