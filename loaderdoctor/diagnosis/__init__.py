"""Drives one diagnosis: plan windows, gather evidence, try what may help. Imports no torch."""
