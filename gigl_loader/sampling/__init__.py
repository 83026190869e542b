"""Sampling: the schedule of an epoch, the samplers, and the protocol of their sources."""
