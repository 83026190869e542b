"""Wire between hosts: addresses, credentials, messages, and the clients of services."""

import os

# gRPC reads this when it is imported: there is no later moment. It writes lines about handshakes to stderr,
# unescaped, past every logger; errors say the same in our words. A user's own setting stays.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
