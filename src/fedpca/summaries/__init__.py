"""Summaries: what travels, and what can be computed from it alone."""
