"""Mechanisms: what is noised, one per file."""
