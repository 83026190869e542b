"""Hosts that each hold some partitions of one graph: rendezvous, partition map and peers."""
