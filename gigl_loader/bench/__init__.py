"""Benchmarks of sampling and loading, beside the limits of the machine and beside a peer, in one run."""
