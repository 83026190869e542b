"""Readers of table files, one for each format."""
