"""One module or folder per command, and what several need: the only place that sees every stage."""
