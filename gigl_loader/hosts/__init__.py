"""Hosts that each hold some partitions of one graph: how they meet, and what they know of each other."""
