"""Public benchmarks: download, verify and load them by name."""
