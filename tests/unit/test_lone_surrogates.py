"""Text that UTF-8 cannot encode, wherever a user or a peer may give some: refused, and named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.channel.frame import Failure
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Address

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HALF = "\ud800"
UNDECODABLE = "\udc80"


def build(
    path: Path | str, *, column: str = "x", node: str = "n", relation: str = "to", split: str = "s"
) -> None:
    ids = np.arange(20)
    tables = GraphTables(
        edges={(node, relation, node): ArrayTable("edges", {"src": ids, "dst": ids[::-1].copy()})},
        nodes={
            node: NodeTable(
                ArrayTable("nodes", {"id": ids, column: np.ones(20, np.float32)}),
                splits={split: ArrayTable("split", {"id": ids})},
            )
        },
    )
    build_graph(tables, path, num_partitions=1)


@pytest.mark.parametrize("what", ["column", "node", "relation", "split"])
def test_names_are_refused_when_a_graph_is_built(tmp_path: Path, what: str) -> None:
    with pytest.raises(ValueError, match=r"^'a\\ud800' cannot name a (column|type|split): ") as raised:
        build(tmp_path / "graph", **{what: "a" + HALF})
    assert type(raised.value) is ValueError
    assert not (tmp_path / "graph").exists()


def test_names_are_not_found_in_a_graph(tmp_path: Path) -> None:
    build(tmp_path / "graph")
    dataset = DistDataset.open(tmp_path / "graph")
    for fanout, seeds in (([2], HALF), ([2], (HALF, "s")), ({("n", HALF, "n"): [2]}, ("n", "s"))):
        with pytest.raises(ValueError, match=r"no split|unknown") as raised:
            DistNeighborLoader(dataset, fanout, seeds, num_workers=0)
        assert not isinstance(raised.value, UnicodeError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: build(f"{path}/{HALF}"), "^cannot write .*: no path has such a name"),
        (lambda path: Caller.from_files(token=f"{path}/{HALF}"), "^cannot read .*: no path has such a name"),
        (lambda path: Caller.from_files(ca=f"{path}/{HALF}"), "^cannot read .*: no path has such a name"),
        (lambda path: Caller(token="t" * 20 + HALF), "visible ASCII"),
        (lambda path: Address.parse(f"host{HALF}:1"), "is not a host name or address"),
        (lambda path: Address.parse(f"{UNDECODABLE}:1"), "is not a host name or address"),
        (lambda path: Address.parse("a" * 64 + ".example:1"), "is not a host name or address"),
    ],
)
def test_paths_and_addresses_are_refused(tmp_path: Path, call: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call(tmp_path)
    assert type(raised.value) is ValueError
    str(raised.value).encode()


def test_a_failure_is_told_though_its_message_cannot_be_encoded() -> None:
    failure = Failure.of(OSError(f"no file {UNDECODABLE}{HALF}"), epoch=1, batch=2, worker=3)
    frame = np.zeros(failure.layout.nbytes, np.uint8)
    failure.write(frame)
    with pytest.raises(Exception, match=r"OSError: no file \\udc80\\ud800"):
        raise Failure.parse(frame).error()
