"""The paper's figures and tables, one experiment per file, and the page that shows them all.

    python -m reproduction --quick

It needs matplotlib, and rich for progress bars; the development environment (`make reproduce`) has both.
"""
