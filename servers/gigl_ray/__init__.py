"""Storage servers on a Ray cluster. Needs ``gigl-loader[ray]``."""

from gigl_ray.store_actor import find_servers
from gigl_ray.store_cluster import StoreCluster

__all__ = ["StoreCluster", "find_servers"]
