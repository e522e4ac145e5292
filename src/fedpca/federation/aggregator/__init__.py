"""The aggregator: the latest summary of every child, checked, kept, and merged into the model."""
