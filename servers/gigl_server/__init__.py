"""The service that answers other hosts for the partitions of a graph that lie on this one."""
