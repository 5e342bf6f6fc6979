"""Columns and window records -> shares of the step, and the facts the findings decide on."""
