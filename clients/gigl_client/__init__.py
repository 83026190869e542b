"""The trainer's side of the graph store: batches from storage servers, for trainers that hold no graph.

It will hold the connection to a cluster, ``RemoteDistDataset`` and the source that fetches frames by
number. Nothing is here yet: a single host needs no client.
"""
