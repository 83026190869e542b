"""Asking other hosts: addresses, credentials, the wire format, and the client's side of it."""
