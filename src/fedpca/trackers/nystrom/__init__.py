"""The fast one-pass kernel."""
