"""Wire between hosts: addresses, credentials, messages, and the clients of services."""
