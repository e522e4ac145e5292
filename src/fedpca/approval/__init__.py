"""Packages for approval: a model with all that is known about its release, and a page to sign."""
