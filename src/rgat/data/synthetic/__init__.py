"""Data sets made by our own generators."""
