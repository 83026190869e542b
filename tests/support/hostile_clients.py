"""Callers of a storage server that keep to no rule: messages by hand, under any token and any job."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.native.draws import DRAW_SPECIFICATION
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import status_of
from gigl_loader.rpc.refusals import RefusalKind
from gigl_loader.rpc.tokens import JOB_HEADER, new_job
from tests.support.plans import neighbor_plan
from tests.support.raw_data import RawCaller, RawSample, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

METHODS: dict[str, Any] = {
    "CreateProducer": partial(messages.CreateProducerRequest, draw_specification=DRAW_SPECIFICATION),
    "OpenChannel": messages.OpenChannelRequest,
    "Sample": messages.SampleRequest,
    "Heartbeat": messages.HeartbeatRequest,
    "CloseChannel": messages.CloseChannelRequest,
    "DestroyProducer": messages.DestroyProducerRequest,
}
"""Calls that belong to a job, and what each is asked with."""

_CALL_S = 20.0

PLAN = neighbor_plan(
    seed_type="node",
    num_neighbors={("node", "to", "node"): (3, 2)},
    run_seed=1,
    node_columns={"node": ("x",)},
    edge_columns={},
)


class HostileClient:
    """One connection to each port of a server."""

    def __init__(self, control: str, data: str, *, token: str, job: str | None = None) -> None:
        self.job = new_job() if job is None else job
        self._token = token
        self._channel = grpc.insecure_channel(
            control, [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        )
        self._data_address = data
        self._data = RawCaller(data)

    def say(
        self,
        method: str,
        said: bytes | None = None,
        *,
        headers: Sequence[tuple[str, str]] | None = None,
        service: str = "gigl.v1.GraphStore",
        **fields: Any,
    ) -> bytes:
        """Call a method with bytes as they are, or with a message of these fields.

        Raises ``grpc.RpcError``, for ``Sample`` ``Refused``.
        """
        data = METHODS[method](**fields).SerializeToString() if said is None else said
        if method == "Sample":
            (size,) = struct.unpack_from(
                "<I", reply := self._data.ask(data, self._header(headers), sample=True)
            )
            return reply[4 : 4 + size]
        call = self._channel.unary_unary(f"/{service}/{method}")
        answer: bytes = call(data, metadata=self.headers if headers is None else headers, timeout=_CALL_S)
        return answer

    def status(self, method: str, said: bytes | None = None, **more: Any) -> str:
        """Return the name of the status that a call ends with."""
        try:
            self.say(method, said, **more)
        except grpc.RpcError as error:
            details = error.details() or ""
            assert "\n" not in details, details
            assert "Traceback" not in details, details
            return str(error.code().name)
        except Refused as refused:
            return str(status_of(RefusalKind(refused.kind)).name)
        return "OK"

    def take(self, ticket: bytes, *, headers: Sequence[tuple[str, str]] | None = None) -> int:
        """Ask the data port with these bytes, and return the size of the reply. Raises ``Refused``."""
        return len(self._data.ask(ticket, self._header(headers)))

    def begin_sample(self, **fields: Any) -> RawSample:
        """Request a batch over a connection of its own, whose reply may be read later, or never."""
        request = messages.SampleRequest(**fields).SerializeToString()
        return RawSample(self._data_address, request, self._header(None))

    def _header(self, headers: Sequence[tuple[str, str]] | None) -> bytes:
        shown = self.headers if headers is None else headers
        return "".join(f"{name}: {value}\n" for name, value in shown).encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._token}"), (JOB_HEADER, self.job)]

    def make_producer(self, graph: str, key: str = "key") -> None:
        self.say("CreateProducer", key=key, plan=PLAN.to_json(), graph=graph)

    def open_channel(self, key: str = "key", **fields: Any) -> bytes:
        """Open a channel and return its id."""
        settings: dict[str, Any] = {"key": key, "name": "stranger", "credit": 4, "share": 1} | fields
        return bytes(messages.Channel.FromString(self.say("OpenChannel", **settings)).id)

    def close(self) -> None:
        self._channel.close()
        self._data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
