from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("version", "wire_version", "graph", "partitions", "data_port", "pid", "uptime_s", "oldest_wire_version", "draw_specification", "incarnation", "repairing")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAW_SPECIFICATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REPAIRING_FIELD_NUMBER: _ClassVar[int]
    version: str
    wire_version: int
    graph: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    data_port: int
    pid: int
    uptime_s: float
    oldest_wire_version: int
    draw_specification: int
    incarnation: int
    repairing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[str] = ..., wire_version: _Optional[int] = ..., graph: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., data_port: _Optional[int] = ..., pid: _Optional[int] = ..., uptime_s: _Optional[float] = ..., oldest_wire_version: _Optional[int] = ..., draw_specification: _Optional[int] = ..., incarnation: _Optional[int] = ..., repairing: _Optional[_Iterable[int]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("cpu_s", "sampling_s", "gathering_s", "calls", "bytes_in", "bytes_out", "refused")
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_S_FIELD_NUMBER: _ClassVar[int]
    GATHERING_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    cpu_s: float
    sampling_s: float
    gathering_s: float
    calls: int
    bytes_in: int
    bytes_out: int
    refused: int
    def __init__(self, cpu_s: _Optional[float] = ..., sampling_s: _Optional[float] = ..., gathering_s: _Optional[float] = ..., calls: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class ClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterView(_message.Message):
    __slots__ = ("self", "servers", "ready", "reason", "membership")
    SELF_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    self: Description
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    ready: bool
    reason: str
    membership: int
    def __init__(self, self_: _Optional[_Union[Description, _Mapping]] = ..., servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ..., ready: bool = ..., reason: _Optional[str] = ..., membership: _Optional[int] = ...) -> None: ...

class Server(_message.Message):
    __slots__ = ("host", "control_port", "data_port", "partitions", "incarnation", "away", "wire_version")
    HOST_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    host: str
    control_port: int
    data_port: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    incarnation: int
    away: bool
    wire_version: int
    def __init__(self, host: _Optional[str] = ..., control_port: _Optional[int] = ..., data_port: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., incarnation: _Optional[int] = ..., away: bool = ..., wire_version: _Optional[int] = ...) -> None: ...

class CreateProducerRequest(_message.Message):
    __slots__ = ("key", "plan", "graph", "draw_specification")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    DRAW_SPECIFICATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    plan: str
    graph: str
    draw_specification: int
    def __init__(self, key: _Optional[str] = ..., plan: _Optional[str] = ..., graph: _Optional[str] = ..., draw_specification: _Optional[int] = ...) -> None: ...

class CreateProducerReply(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: bool = ...) -> None: ...

class OpenChannelRequest(_message.Message):
    __slots__ = ("key", "name", "credit", "share", "without_rows", "ring_slots", "ring_slot_bytes", "plan_digest", "interactive")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_ROWS_FIELD_NUMBER: _ClassVar[int]
    RING_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RING_SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    key: str
    name: str
    credit: int
    share: int
    without_rows: bool
    ring_slots: int
    ring_slot_bytes: int
    plan_digest: bytes
    interactive: bool
    def __init__(self, key: _Optional[str] = ..., name: _Optional[str] = ..., credit: _Optional[int] = ..., share: _Optional[int] = ..., without_rows: bool = ..., ring_slots: _Optional[int] = ..., ring_slot_bytes: _Optional[int] = ..., plan_digest: _Optional[bytes] = ..., interactive: bool = ...) -> None: ...

class Channel(_message.Message):
    __slots__ = ("id", "lease_s", "ring_door")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    RING_DOOR_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    lease_s: float
    ring_door: str
    def __init__(self, id: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., ring_door: _Optional[str] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("channel", "epoch", "batch", "fence", "inputs", "index", "slot", "number", "new_nodes")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NEW_NODES_FIELD_NUMBER: _ClassVar[int]
    channel: bytes
    epoch: int
    batch: int
    fence: int
    inputs: bytes
    index: bytes
    slot: int
    number: int
    new_nodes: bytes
    def __init__(self, channel: _Optional[bytes] = ..., epoch: _Optional[int] = ..., batch: _Optional[int] = ..., fence: _Optional[int] = ..., inputs: _Optional[bytes] = ..., index: _Optional[bytes] = ..., slot: _Optional[int] = ..., number: _Optional[int] = ..., new_nodes: _Optional[bytes] = ...) -> None: ...

class SampleReply(_message.Message):
    __slots__ = ("in_slot", "failure", "skipped", "frame", "nbytes", "unavailable", "sampling_s", "waiting_s")
    IN_SLOT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    in_slot: bool
    failure: bytes
    skipped: bool
    frame: bool
    nbytes: int
    unavailable: bool
    sampling_s: float
    waiting_s: float
    def __init__(self, in_slot: bool = ..., failure: _Optional[bytes] = ..., skipped: bool = ..., frame: bool = ..., nbytes: _Optional[int] = ..., unavailable: bool = ..., sampling_s: _Optional[float] = ..., waiting_s: _Optional[float] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, channels: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, channels: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CloseChannelRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: bytes
    def __init__(self, channel: _Optional[bytes] = ...) -> None: ...

class CloseChannelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DestroyProducerRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class DestroyProducerReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerLoad(_message.Message):
    __slots__ = ("self", "totals", "workers", "busy", "jobs", "producers", "rss_bytes", "ready_bytes", "channels", "peers", "ready", "reason", "batches", "bytes", "topology_partitions", "calls", "shared", "shared_bytes", "interactive_batches", "interactive_waiting_s")
    SELF_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_WAITING_S_FIELD_NUMBER: _ClassVar[int]
    self: Description
    totals: Statistics
    workers: int
    busy: int
    jobs: int
    producers: int
    rss_bytes: int
    ready_bytes: int
    channels: _containers.RepeatedCompositeFieldContainer[ChannelLoad]
    peers: _containers.RepeatedCompositeFieldContainer[PeerLoad]
    ready: bool
    reason: str
    batches: int
    bytes: int
    topology_partitions: int
    calls: _containers.RepeatedCompositeFieldContainer[CallLoad]
    shared: int
    shared_bytes: int
    interactive_batches: int
    interactive_waiting_s: float
    def __init__(self, self_: _Optional[_Union[Description, _Mapping]] = ..., totals: _Optional[_Union[Statistics, _Mapping]] = ..., workers: _Optional[int] = ..., busy: _Optional[int] = ..., jobs: _Optional[int] = ..., producers: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., ready_bytes: _Optional[int] = ..., channels: _Optional[_Iterable[_Union[ChannelLoad, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[PeerLoad, _Mapping]]] = ..., ready: bool = ..., reason: _Optional[str] = ..., batches: _Optional[int] = ..., bytes: _Optional[int] = ..., topology_partitions: _Optional[int] = ..., calls: _Optional[_Iterable[_Union[CallLoad, _Mapping]]] = ..., shared: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., interactive_batches: _Optional[int] = ..., interactive_waiting_s: _Optional[float] = ...) -> None: ...

class CallLoad(_message.Message):
    __slots__ = ("port", "method", "calls", "bytes_in", "bytes_out")
    PORT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    port: str
    method: str
    calls: int
    bytes_in: int
    bytes_out: int
    def __init__(self, port: _Optional[str] = ..., method: _Optional[str] = ..., calls: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...

class ChannelLoad(_message.Message):
    __slots__ = ("job", "key", "name", "transport", "batches", "bytes", "queued", "sampling_s", "waiting_s", "idle_s", "shared", "interactive")
    JOB_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    job: str
    key: str
    name: str
    transport: str
    batches: int
    bytes: int
    queued: int
    sampling_s: float
    waiting_s: float
    idle_s: float
    shared: int
    interactive: bool
    def __init__(self, job: _Optional[str] = ..., key: _Optional[str] = ..., name: _Optional[str] = ..., transport: _Optional[str] = ..., batches: _Optional[int] = ..., bytes: _Optional[int] = ..., queued: _Optional[int] = ..., sampling_s: _Optional[float] = ..., waiting_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., shared: _Optional[int] = ..., interactive: bool = ...) -> None: ...

class PeerLoad(_message.Message):
    __slots__ = ("server", "calls", "bytes_in", "bytes_out", "retries")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    server: int
    calls: int
    bytes_in: int
    bytes_out: int
    retries: int
    def __init__(self, server: _Optional[int] = ..., calls: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., retries: _Optional[int] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("partition", "begin")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    begin: bool
    def __init__(self, partition: _Optional[int] = ..., begin: bool = ...) -> None: ...

class AdoptReply(_message.Message):
    __slots__ = ("step", "done", "total", "error")
    STEP_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    step: str
    done: int
    total: int
    error: str
    def __init__(self, step: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class HealthList(_message.Message):
    __slots__ = ("statuses",)
    class StatusesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.ScalarMap[str, bytes]
    def __init__(self, statuses: _Optional[_Mapping[str, bytes]] = ...) -> None: ...
