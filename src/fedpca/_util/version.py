"""The version of this package, for everything that reports it."""

__version__ = "0.1.0"
