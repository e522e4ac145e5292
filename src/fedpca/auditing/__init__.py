"""Audits: whether private releases keep what their certificates promise, tried on synthetic rows."""
