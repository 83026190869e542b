"""Ports of a server: the control port (gRPC), the data port, metrics, and who may use them."""
