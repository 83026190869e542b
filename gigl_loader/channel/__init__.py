"""Channels between processes: frames (a batch in one flat buffer) and rings (memory shared with a worker)."""
