"""Secure sums: the total over owners of which nobody sees the part of one."""
