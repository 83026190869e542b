"""Servers: the storage server for trainers, and the peer service for other hosts."""
