"""Benchmarks by name: where their files come from and what they contain."""
