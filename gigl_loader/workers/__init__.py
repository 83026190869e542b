"""Sampling processes on this host: the source of batches that they make, and each of their parts."""
