"""Facts -> findings: one rule per small module, listed in `rules.RULES`."""
