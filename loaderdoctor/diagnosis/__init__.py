"""Drives one diagnosis: plan windows, gather evidence, try the medicine. Imports no torch."""
