"""Other servers that hold a partition, as sources of the bytes of its files."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.graph.manifest import Manifest
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.remote_store import fetch_file, fetch_manifest
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.credentials import Caller

_LOGGER = logging.getLogger(__name__)
_VIEW_S = 5.0
_AT_ONCE = 8
_MAX_SERVERS = 4096
_TIMEOUT_S = 20.0
_ATTEMPT_S = 15.0


class FileSource:
    """A server that holds partitions, as a source of the bytes of their files. Thread-safe."""

    def __init__(self, endpoint: Endpoint, caller: Caller, digest: str) -> None:
        self.endpoint = endpoint
        self.digest = digest
        """Digest of its graph."""
        self._connection = connection_to(endpoint, caller, timeout_s=_TIMEOUT_S, attempt_s=_ATTEMPT_S)

    def __str__(self) -> str:
        return f"storage server at {self.endpoint.control_address}"

    def fetch(self, name: str, first: int, count: int) -> Bytes:
        """Return bytes of a file, uint8 [count], not verified. Raises as ``ReplicaConnection.call``."""
        return fetch_file(self._connection, name, first, count, digest=self.digest)

    def manifest(self) -> bytes:
        """Return ``graph.json``. ``FormatError`` unless it has the digest that the server announced."""
        data = fetch_manifest(self._connection)
        found = Manifest.parse(data, what=f"graph.json of {self}").digest
        if found != self.digest:
            raise StorageUnavailable(f"{self} told digest {self.digest[:12]}, and sends {found[:12]}")
        return data

    def close(self) -> None:
        """Cancel what is under way. Closing twice is fine."""
        self._connection.close()


class FileSourceFinder:
    """Finds servers by their addresses, and by the servers that they know.

    Where this server has a cluster key, only servers that prove it are believed.
    """

    def __init__(
        self, caller: Callable[[], Caller], *, cluster_key: str, certificate: str, own: str = ""
    ) -> None:
        """``certificate`` is the PEM that callers of servers trust, ``own`` the address of this server."""
        self._caller = caller
        self._cluster_key = cluster_key
        self._certificate = certificate
        self._own = own

    def find(
        self, addresses: Iterable[str], *, partition: int | None, digest: str | None
    ) -> list[FileSource]:
        """Return the servers that hold a partition, or all servers for ``None``, in order of address.

        A server that repairs the partition holds sound bytes of it, too.

        ``digest`` is that of the expected graph; ``None`` takes that of the first server that responds, and
        refuses others with ``ValueError``. The caller closes the holders. Raises ``StorageUnavailable`` with
        the reasons where there is none.
        """
        views, errors = self._views(addresses)
        found: list[FileSource] = []
        for address, view in sorted(views.items()):
            digest = view.graph if digest is None else digest
            if view.graph != digest:
                what = f"digest {view.graph[:12]} vs {digest[:12]}"
                errors.append(f"storage server at {address} has another graph: {what}")
            elif partition is None or partition in (*view.partitions, *view.repairing):
                try:
                    wire = BuildVersions.of(view).agree(f"storage server at {address}")
                except ValueError as error:
                    errors.append(str(error))
                else:
                    found.append(self._holder(address, view, wire))
        if not found:
            what = "other server" if partition is None else f"other server that holds partition {partition}"
            raise StorageUnavailable(f"no {what} is known{': ' if errors else ''}{'; '.join(errors[:4])}")
        return found

    def _holder(self, address: str, view: ClusterView, wire: int) -> FileSource:
        endpoint = replace(
            self._endpoint(address),
            data_port=view.data_port,
            partitions=view.partitions,
            wire_version=wire,
        )
        return FileSource(endpoint, self._caller(), view.graph)

    def _endpoint(self, address: str) -> Endpoint:
        where = Address.parse(address)
        return Endpoint.of_address(where, what="storage server", certificate=self._certificate)

    def _views(self, addresses: Iterable[str]) -> tuple[dict[str, ClusterView], list[str]]:
        """Return the views of all servers that respond, by address, and the errors of those that do not."""
        views: dict[str, ClusterView] = {}
        errors: list[str] = []
        seen = {self._own}
        new = [address for address in dict.fromkeys(addresses) if address not in seen]
        with ThreadPool(_AT_ONCE, thread_name_prefix="holders") as pool:
            while new and len(seen) < _MAX_SERVERS:
                seen.update(new)
                for address, found in zip(new, list(pool.map(self._view, new)), strict=True):
                    if isinstance(found, Exception):
                        errors.append(str(found))
                    else:
                        views[address] = found
                told = (server.control_address for view in views.values() for server in view.servers)
                new = [address for address in dict.fromkeys(told) if address not in seen]
        return views, errors

    def _view(self, address: str) -> ClusterView | Exception:
        try:
            with closing(StoreClient(self._endpoint(address), self._caller())) as client:
                view = client.cluster(_VIEW_S, cluster_key=self._cluster_key)
        except (GiglError, ValueError) as error:
            return error
        if self._cluster_key and not view.proven:
            return ValueError(f"storage server at {address} does not prove the cluster key of this one")
        return view
