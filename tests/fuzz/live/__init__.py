"""Hostile bytes against live ports, while honest trainers run."""
