"""Graphs that graphlearn-torch (GLT) has partitioned: read without GLT, written as graphs of this library."""
