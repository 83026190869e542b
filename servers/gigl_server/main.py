"""Main function of a storage server's process: signals, log and exit code.

====  ================================================================================================
code  meaning
====  ================================================================================================
0     ended on request: drained, or the drain timed out, or the end took 2 s longer than the drain may
1     a failure: a port stays taken, the other servers do not come or do not fit, a second signal
2     the user's mistake: options, files, certificates; nothing was bound
3     a part of the server died, a port or a thread; the log names it. To be started again
====  ================================================================================================
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from gigl_loader.processes import forbid_cores, keep_freed_memory
from gigl_loader.resources import raise_file_limit
from gigl_loader.rpc.secret_files import FileWatch
from gigl_loader.tracing import find_tracer
from gigl_server.certificate_renewal import Renewal
from gigl_server.logs import configure_logging
from gigl_server.partitions.adoption import open_graph
from gigl_server.preflight import wait_free, warn_of_limits
from gigl_server.server import build_storage_server
from gigl_server.signals import LET_GO, RELOAD, Signals, leave, leave_within, tell_when, wait_for_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from queue import SimpleQueue

    from gigl_server.config import ServeOptions
    from gigl_server.logs import LineHandler
    from gigl_server.server import StorageServer

_LOGGER = logging.getLogger(__name__)
_FAILED = 1
_PART_DIED = 3
END_S = 1.8
"""Time from the end of the drain, at a signal, to the forced end of the process."""
_CLOSE_S = 8.0
"""Timeout of closing everything, however early the drain ended. Each part waits some seconds at most."""
_FLUSH_S = 1.0
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_CANNOT = "cannot become ready"
_DIED = "a part of the server died"


def run(options: ServeOptions) -> NoReturn:
    """Serve until a signal arrives, and exit the process with the code.

    Raises what ``build_storage_server`` raises. Invalid options are raised before anything else is done.
    """
    with suppress(OSError), open("/proc/self/comm", "w") as comm:  # Belongs to root after ``forbid_cores``.
        comm.write("gigl-store")
    if not options.allow_core:
        forbid_cores()
    with Signals(end_at_once=_LOGGER.warning, within_s=options.drain_s + END_S) as signals:
        watch = FileWatch(options.credential_files)
        credentials = options.load_credentials()
        credentials.check_reach(options.address)
        if not options.adopt:
            graph = open_graph(options, credentials)  # Before the log is opened: a mistake leaves no file.
        with suppress(OSError, ValueError):  # No stderr.
            faulthandler.enable()
        log = configure_logging(options.log_file)
        if options.adopt:
            graph = open_graph(options, credentials)
        warn_of_limits(options)
        prepare_process()
        wait_free(options.listening_addresses)  # Before signals are held: one of them ends the wait.
        signals.hold()
        flush_spans = export_spans(options, os.environ) if options.otel else None
        with build_storage_server(options, graph=graph, credentials=credentials) as server:
            renewal = Renewal(watch, partial(_renew, server, options))
            reload = partial(_reload, renewal, log)
            drain_s = partial(signals.left_of, options.drain_s)
            code = serve_until_told(server, signals.told, drain_s, reload=reload, look=renewal.look)
            leave_within(_CLOSE_S, code)
        if flush_spans is not None:
            flush_spans()
        leave(code)


def serve_until_told(
    server: StorageServer,
    told: SimpleQueue[str],
    drain_s: Callable[[], float],
    *,
    reload: Callable[[], None] = lambda: None,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Wait for a word in ``told``, drain, and return the exit code: 1 if the server cannot become ready,
    3 if a part of it died.

    After ``LET_GO`` no trainer is left to fetch frames, so the server does not drain. ``RELOAD`` calls
    ``reload``; ``look`` is called about once per second. ``drain_s`` returns the seconds that a drain may
    take from now on.
    """
    tell_when(server.failed, _CANNOT, told)
    tell_when(server.died, _DIED, told)
    while (word := wait_for_word(told, look)) == RELOAD:
        reload()
    if word == _CANNOT:
        return _FAILED
    _LOGGER.info("%s: ending", word)
    if word == _DIED:  # No drain: trainers retry at the restarted server.
        return _PART_DIED
    if word == LET_GO:
        return 0
    server.drain(drain_s())
    return 0


def _reload(renewal: Renewal, log: LineHandler) -> None:
    """Reopen the log, and use the certificates and tokens that the files hold now.

    Where a file cannot be read or does not fit, the log, or the credentials, stay as they are.
    """
    try:
        log.reopen()
    except OSError as error:
        _LOGGER.error("%s: the log stays where it is: %s", RELOAD, error)
    else:
        _LOGGER.info("%s: the log goes on here", RELOAD)
    renewal.renew(RELOAD)


def _renew(server: StorageServer, options: ServeOptions) -> None:
    credentials, metrics_tokens = options.load_credentials(), options.load_metrics_tokens()
    credentials.check_reach(options.address)
    server.renew(credentials, metrics_tokens=metrics_tokens)


def export_spans(options: ServeOptions, environment: Mapping[str, str]) -> Callable[[], None]:
    """Export the spans of this process over OTLP. Return a function that sends what is left, within 1 s.

    ``environment`` has the protocol; OpenTelemetry reads its other variables itself. Does nothing where the
    process has a tracer provider, as under ``opentelemetry-instrument``.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if find_tracer() is not None:
        return lambda: None
    protocol = next((environment[name] for name in _PROTOCOL_VARIABLES if environment.get(name)), "grpc")
    if protocol not in _EXPORTERS:
        raise ValueError(
            f"{_PROTOCOL_VARIABLES[1]} must be one of {', '.join(_EXPORTERS)}, got {protocol!r:.100}"
        )
    own = {
        "service.name": "gigl-loader",
        "service.instance.id": f"{options.reachable_host}:{options.address.port}",
    }
    resource = Resource.create(own).merge(OTELResourceDetector().detect())  # Variables go before.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter: Any = import_module(_EXPORTERS[protocol])
    provider.add_span_processor(BatchSpanProcessor(exporter.OTLPSpanExporter()))
    trace.set_tracer_provider(provider)

    def flush() -> None:
        # A thread: a collector that is away would hold the end of the process for longer.
        ended = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        ended.start()
        ended.join(_FLUSH_S)

    return flush


def prepare_process() -> None:
    """Set up this process for many channels and large replies."""
    keep_freed_memory()
    raise_file_limit()
