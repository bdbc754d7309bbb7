"""The PyTorch backend: vectorised operations for any device."""
