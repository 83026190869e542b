"""Partitions of a running server: their files, pulled from other servers, and what is held of them."""
