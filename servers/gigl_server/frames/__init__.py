"""Frames: memory for batches that wait to be fetched, and rings shared with trainers on this host."""
