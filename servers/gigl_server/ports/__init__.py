"""Ports of a server: the control port (gRPC), the data port (Flight), metrics, and who may use them."""
