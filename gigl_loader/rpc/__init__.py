"""Wire between hosts: addresses, credentials, messages, and the clients of services."""

import os

# gRPC reads these when it is imported: there is no later moment. A user's own settings stay.
# Its core writes lines about handshakes to stderr, unescaped, past every logger; our errors say the same.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Where this is not set, the core's fork handlers run and those of its Python side do not: one forked child
# in six was aborted in `os.fork` (grpc/grpc#41455). A child that does not use gRPC needs neither.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
