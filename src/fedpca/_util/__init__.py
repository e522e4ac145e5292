"""Small helpers that know nothing of PCA."""
