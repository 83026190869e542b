from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("version", "wire_version", "graph", "partitions", "data_port", "pid", "uptime_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    version: str
    wire_version: int
    graph: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    data_port: int
    pid: int
    uptime_s: float
    def __init__(self, version: _Optional[str] = ..., wire_version: _Optional[int] = ..., graph: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., data_port: _Optional[int] = ..., pid: _Optional[int] = ..., uptime_s: _Optional[float] = ...) -> None: ...

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
