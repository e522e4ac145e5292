"""Other published algorithms, to compare with."""
