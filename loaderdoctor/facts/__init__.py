"""What is known of a run, as values: made by attribution, read by findings, advice and report."""
