"""The experiments: which models on which data, how often."""
