"""Texts of other processes and of files: nothing in them is interpreted where they are shown."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Group

from gigl_loader.channel.frame import Failure
from gigl_loader.cli import adopt, audit, checkup, doctor, inspect, replay, top
from gigl_loader.cli.cluster_loads import Loads, Looker, ServerLoad, _plain, tables
from gigl_loader.cli.console import build_progress, plain_console, say
from gigl_loader.cli.errors import one_line, reported
from gigl_loader.cli.top_web import _Cached
from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.graph.manifest import Manifest, check_files
from gigl_loader.loaders.audit_report import AuditReport, Finding, Violation
from gigl_loader.logs import PrintableFormatter, log_from_environment
from gigl_loader.partition import build_graph
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.table import GraphTables, NodeTable
from gigl_loader.printable import printable, printable_lines
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import ClusterView
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

WORST = (
    "[/nope]",
    "[red]x[link=file:///etc/passwd]",
    ":skull:",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "a\r\nb\x00\x08",
    "\u202eevil\u2066",
    "\u200b\ufeff\u00ad",
    "\u2028\u2029\x85",
)
HALVES = "\ud800\udfff"
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.sampled_from(WORST)
"""Texts that UTF-8 encodes, as messages and files of graphs have them."""
TEXTS = NAMES | st.text(max_size=20) | st.just(HALVES)
"""Any text, as JSON has it."""
SGR = re.compile(r"\x1b\[[0-9;]*m")
"""Colours and weights, which the console itself writes."""

SHORT = NAMES.filter(lambda text: len(text.encode()) <= 12)
"""Names of types are parts of the names of files."""

once = settings(max_examples=25, deadline=None)


def check_shown(shown: str, *texts: str) -> None:
    """Check that nothing in an output is interpreted, and that texts are in it, however they are folded."""
    for line in SGR.sub("", shown).split("\n"):
        assert line.isprintable(), ascii(line)
    flat = "".join(shown.split())
    for text in texts:
        assert "".join(printable(text).split()) in flat, (text, shown)


@contextmanager
def output() -> Iterator[io.StringIO]:
    """Lend what a command writes to standard output and standard error."""
    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written):
        yield written


@given(text=TEXTS)
def test_a_text_is_one_line_that_shows_what_it_holds(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    if "\\" not in text:
        assert shown.encode("ascii", "backslashreplace").decode("unicode_escape") == text or "\\U" in shown
    assert [printable(each) for each in text.split("\n")] == printable_lines(text).split("\n")


def test_letters_of_any_script_stay_and_long_texts_are_cut() -> None:
    assert printable("größer 漢字 Ω é") == "größer 漢字 Ω é"
    assert printable("x" * 9, 4) == "xxxx..."
    assert printable("\x1b" * 5, 2) == r"\x1b\x1b..."


# --- top


def load_of(text: str) -> messages.ServerLoad:
    """Return the load of a forged server, with a text wherever it may have one."""
    load = messages.ServerLoad(reason=text, workers=1, batches=3)
    load.self.version, load.self.graph = text, text
    load.self.wire_version, load.self.draw_specification = 99, 1
    load.channels.add(job=text, key=text, name=text, transport=text, batches=2)
    load.calls.add(port=text, method=text)
    load.peers.add(server=1, calls=2)
    return load


def loads_of(text: str) -> Loads:
    server = ServerLoad(address="h:1", partitions=(0,), load=_plain(load_of(text)), error="")
    ready = replace(server, load={**server.load, "self": {**server.load["self"], "wire_version": 4}})
    failed = replace(server, load={}, error=text)
    return Loads(at=1.0, graph=text, servers=(server, ready, failed))


@once
@given(text=NAMES)
def test_top_of_a_forged_server(text: str) -> None:
    with output() as written, mock.patch.object(sys.stdout, "isatty", return_value=False, create=True):
        top._print(loads_of(text))
        check_shown(written.getvalue())
    for terminal in (False, True):
        console = plain_console(file=io.StringIO(), width=400, force_terminal=terminal)
        console.print(Group(*tables(loads_of(text), loads_of(text), width=400)))
        check_shown(console.file.getvalue(), text)  # type: ignore[attr-defined]


@once
@given(text=NAMES)
def test_the_page_of_a_forged_server_is_json(text: str) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(_Cached(lambda: loads_of(text), 1.0).read(), parse_constant=refuse)
    assert found["servers"][0]["channels"][0]["job"] == text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_load_with_a_number_that_is_none_is_an_error_of_its_server(number: float) -> None:
    """The page can go on: JSON of a browser has no such number."""
    load = messages.ServerLoad(workers=1)
    load.channels.add(sampling_s=number)
    server: Any = SimpleNamespace(control_address="h:1", partitions=(0,))
    client = SimpleNamespace(load=lambda _: load, close=lambda: None)
    with mock.patch("gigl_loader.cli.cluster_loads.StoreClient", return_value=client):
        found = Looker("h:1", Caller(), 1.0)._load(server)
    assert (found.load, found.error) == ({}, f"its load has {number} as sampling_s")
    json.dumps(Loads(at=1.0, graph="g", servers=(found,)).to_json(), allow_nan=False)


# --- other commands


def forge(folder: Path, name: str) -> None:
    """Write a graph whose types and columns have this name."""
    nodes = ArrayTable("nodes", {"id": np.arange(4), name: np.ones(4, np.float32)})
    ends = np.array([0, 1])
    edges = {(name, name, name): ArrayTable("edges", {"src": ends, "dst": ends})}
    build_graph(GraphTables(edges=edges, nodes={name: NodeTable(nodes)}), folder, num_partitions=1)


@once
@given(text=TEXTS)
def test_replay_of_a_forged_ledger(text: str) -> None:
    recording: Any = SimpleNamespace(
        path=text,
        lines=1,
        batches=1,
        epochs=[0],
        run={"run": text, "graph": text},
        head=text,
        incomplete_bytes=3,
    )
    result = {"ledger": text, "line": 1, "batch": 2, "epoch": 0, "served_by": text, "differs": [text]}
    with output() as written:
        replay._tell([recording], [result], text + "x")
    check_shown(written.getvalue(), text)


@once
@given(text=SHORT)
def test_inspect_of_a_forged_graph(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("forged") / "graph"
    forge(folder, text)
    with output() as written:
        inspect.inspect(str(folder))
    check_shown(written.getvalue(), text)


@once
@given(text=TEXTS)
def test_errors_and_lines_of_any_command(text: str) -> None:
    for kind in (ValueError, StorageUnavailable, OSError, KeyError):
        check_shown(one_line(kind(f"a{text}z")))

    @reported
    def command() -> None:
        raise FormatError(f"a{text}z")

    with output() as written, pytest.raises(Exception, match="2"):
        command()
    check_shown(written.getvalue())
    with output() as written:
        say(f"a{text}z")
    check_shown(written.getvalue(), f"a{text}z")


@once
@given(text=NAMES)
def test_adopt_at_a_forged_server(text: str) -> None:
    states = [messages.AdoptReply(step=text, done=1, total=2), messages.AdoptReply(step="failed", error=text)]
    client: Any = SimpleNamespace(adopt=lambda *_, **__: states.pop(0), endpoint="a server")
    with (
        output() as written,
        mock.patch.object(adopt.time, "sleep"),  # type: ignore[attr-defined]
        mock.patch("gigl_loader.cli.console._LINE_EVERY_S", 0.0),
        build_progress(quiet=False) as show,
        pytest.raises(StorageUnavailable) as failed,
    ):
        adopt._follow(client, 0, "", stalled_s=60.0, show=show)
    check_shown(written.getvalue(), text)
    check_shown(one_line(failed.value))


@once
@given(text=NAMES)
def test_bars_of_a_terminal(text: str) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    with mock.patch.object(sys, "stderr", terminal), build_progress(quiet=False) as show:
        assert show is not None
        show(text, 1, 2)
    assert not re.search(r"\x1b\[(?![0-9;?]*[mhlKA])|[\x07\x9b]", terminal.getvalue())


@once
@given(text=TEXTS)
def test_findings_of_audit(text: str) -> None:
    found = Violation(check="seeds", text=text)
    finding = Finding(check="seeds", subject=text, looked_at={text: 1}, violations=2, examples=(found,))
    with output() as written:
        audit._tell(AuditReport(subject=text, findings=(finding,)))
    check_shown(written.getvalue(), text)


@once
@given(text=TEXTS)
def test_findings_of_doctor(text: str) -> None:
    with (
        output() as written,
        mock.patch.object(checkup, "examine", return_value=[checkup.Verdict(text, "ok", text)]),
    ):
        doctor.doctor(disk=None, json=False)
    check_shown(written.getvalue(), text)


@once
@given(text=NAMES)
def test_fetch_of_a_forged_graph_names_its_files(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("forged") / "graph"
    forge(folder, "n")
    manifest = Manifest.parse((folder / "graph.json").read_bytes(), what="it")
    record = next(iter(manifest.files.values()))
    with pytest.raises(FormatError) as refused:
        check_files(replace(manifest, files={**manifest.files, text: record}))
    check_shown(one_line(refused.value))


# --- logs


@once
@given(text=TEXTS)
def test_lines_of_logs(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        raised = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "said %s", (text,), raised)
    shown = PrintableFormatter("%(levelname)s: %(message)s").format(record)
    assert shown.split("\n")[0] == f"ERROR: said {printable(text)}"
    check_shown(shown)


def test_both_logs_show_texts_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure_logging(str(tmp_path / "log"))
        logging.getLogger("gigl_server").warning("said %s", "".join(WORST))
        root.handlers[:] = []
        log_from_environment({"GIGL_LOG": "warning"})
        logging.getLogger("gigl_client.x").warning("said %s", "".join(WORST))
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        for name in ("gigl_loader", "gigl_client"):
            logger = logging.getLogger(name)
            logger.handlers[:] = []
            logger.setLevel(logging.NOTSET)
    for shown in ((tmp_path / "log").read_text(), capfd.readouterr().err):
        assert shown.endswith(f"said {printable(''.join(WORST))}\n")
        assert shown.count("\n") == 1


# --- errors that a script gets


@once
@given(text=NAMES)
def test_what_peers_say_is_printable_where_it_arrives(text: str) -> None:
    view = messages.ClusterView(reason=text)
    view.self.version = view.self.graph = text
    read = ClusterView.read(view, certificate="")
    record = json.dumps({"kind": "busy", "message": text}).encode()
    refusal = Refusal.from_record(record)
    assert refusal is not None
    for shown in (read.version, read.graph, read.reason, str(refusal), str(refusal.error("it"))):
        assert shown.isprintable()
    assert Refusal.from_record(Refusal(RefusalKind.BUSY, text).to_record()) is not None


@once
@given(text=TEXTS)
def test_failures_of_batches_keep_their_lines_alone(text: str) -> None:
    failure = Failure(epoch=0, batch=0, type=text, message=text, traceback=f"a\n{text}", worker=1)
    buffer = np.empty(failure.layout.nbytes, np.uint8)
    failure.write(buffer)
    error = Failure.parse(buffer).error()
    check_shown("\n".join([str(error), *getattr(error, "__notes__", [])]))


@pytest.mark.parametrize("host", ["\x1b", "a\u202eb", "a\x85b", "\ud800", "a b", "a\u00a0b"])
def test_a_host_whose_name_is_not_printable_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host name or address") as refused:
        Address(host, 1)
    assert str(refused.value).isprintable()


# --- the rule itself


def test_commands_print_by_these_functions_alone() -> None:
    """``print`` is left for JSON, which escapes by itself, and for an empty line."""
    folder = Path(top.__file__ or "").parent
    found = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            call, arguments = ast.unparse(node.func), list(map(ast.unparse, node.args))
            if call == "print" and arguments and not re.match(r"(json_module\.)?dumps\(", arguments[0]):
                found.append(f"{path.name}: {call}({', '.join(arguments)})")
            elif call in ("Console", "typer.echo") or any(each.startswith("[/") for each in arguments):
                found.append(f"{path.name}: {call}")
    own = {
        "app.py: typer.echo",  # The version.
        "bench.py: Console",  # Measurements of this machine.
        "console.py: print(printable(text))",
        "demo.py: Console",
    }
    assert set(found) == own
