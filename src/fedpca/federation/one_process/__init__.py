"""A federation in one process: `FederatedPCA`, and `simulate` for faults of its network."""
