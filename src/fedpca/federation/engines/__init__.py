"""Engines of one organization: the PCA of a large table in Dask or Spark, where its partitions are."""
