"""Cluster: discovery of the other storage servers, and the stores that reach their partitions."""
