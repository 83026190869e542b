"""A peer service that fails by plan. The package itself knows nothing of faults."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

from gigl_loader.rpc import host_service
from tests.support.faults import FaultPlan

if TYPE_CHECKING:
    from gigl_loader.rpc.checksums import Checksum
    from gigl_server.admission import Identity
    from gigl_server.ports.queries import Queries

_VARIABLE = "GIGL_TEST_PEER_FAULTS"


def plan_peer_faults(faults: dict[str, Any]) -> None:
    """Let services that this process starts follow a ``FaultPlan``, whose batch is the number of an ask."""
    os.environ[_VARIABLE] = json.dumps(faults)
    host_service._ENTRY = f"{__name__}:main"


def main(link: socket.socket) -> None:
    """Serve, with the planned faults."""
    faults = FaultPlan(**json.loads(os.environ[_VARIABLE]))
    if faults.at_batch is None:
        faults.commit()
    else:
        _fail_at(faults)
    from gigl_server.child import peer_service  # Starts threads, which a fork server must not have.

    peer_service(link)


def _fail_at(faults: FaultPlan) -> None:
    from gigl_server.ports.queries import Queries

    asks = 0
    answer = Queries.respond  # Which every ask goes through, for rows as for lists.

    def counted(self: Queries, ticket: bytes, caller: Identity, checksum: Checksum) -> Any:
        nonlocal asks
        asks += 1
        if asks == faults.at_batch:
            faults.commit()
        return answer(self, ticket, caller, checksum)

    Queries.respond = counted  # type: ignore[method-assign]
