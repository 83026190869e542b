"""The storage server of the graph store: a daemon that holds partitions and samples for remote trainers.

It will hold the control service (producers, inputs, epochs, leases, health), the data service that
sends frames, and the process that runs both. Nothing is here yet: a single host needs no server.
"""
