"""The Numba backend: compiled loops for the CPU."""
