"""One module per command: the only place that sees every stage."""
