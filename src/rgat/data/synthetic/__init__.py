"""Built-in data sets, generated from a random seed."""
