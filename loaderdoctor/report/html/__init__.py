"""report.html: one self-contained file. No script, no network."""
