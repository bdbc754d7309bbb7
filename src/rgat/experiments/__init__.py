"""The paper's experiments: requests, folds, search, executors, records and their summary."""
