"""Secure sums: whoever collects learns the sum over owners, and nothing else."""
