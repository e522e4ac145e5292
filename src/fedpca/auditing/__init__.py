"""Audits: whether what private releases show keeps what their certificates promise, tried on synthetic rows."""
