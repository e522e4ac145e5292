"""Data to try things on: real rows by name, and rows drawn from a power law."""

from reproduction.datasets.catalog import Dataset, load, names
from reproduction.datasets.synth import synth, synth_batches

__all__ = ["Dataset", "load", "names", "synth", "synth_batches"]
