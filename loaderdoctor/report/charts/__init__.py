"""Pictures of a report: each is drawn once, as SVG for the page and as PNG for the run folder."""
