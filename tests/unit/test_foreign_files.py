"""Files without a reader are refused with lines of Python that build a graph from them."""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from torch_geometric.data import Data

from gigl_loader.graph import Graph
from gigl_loader.partition import open_table
from gigl_loader.partition.refusals import ForeignFile
from tests.support.command_line import run_here

PAIRS = [(0, 1), (0, 2), (2, 1)]
SRC, DST = (np.array(end) for end in zip(*PAIRS, strict=True))


def _refused(path: Path) -> ForeignFile:
    with pytest.raises(ForeignFile) as caught:
        open_table(str(path), role="edges")
    assert str(path) in str(caught.value)
    return caught.value


def _matrix(of: Callable[[str, Any], object], name: str) -> Callable[[], Any]:
    """Write a sparse matrix with a weight for each edge."""
    matrix = scipy.sparse.coo_matrix((np.array([1.0, 2.0, 3.0]), (SRC, DST)), shape=(3, 3))
    return lambda: of(name, matrix)


def _networkx(name: str) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph(PAIRS)
    getattr(networkx, f"write_{name.rpartition('.')[2]}")(graph, name)


def _sqlite(name: str) -> None:
    with sqlite3.connect(name) as connection:
        connection.execute("CREATE TABLE edges (src INT, dst INT)")
        connection.executemany("INSERT INTO edges VALUES (?, ?)", PAIRS)
    connection.close()


def _hdf5(name: str) -> None:
    with pytest.importorskip("h5py").File(name, "w") as file:
        file["src"], file["dst"] = SRC, DST


def _avro(name: str) -> None:
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": end, "type": "long"} for end in ("src", "dst")]
    rows = [{"src": src, "dst": dst} for src, dst in PAIRS]
    with Path(name).open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "edge", "fields": fields}, rows)


def _frame(name: str, method: str) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("openpyxl")  # What pandas reads Excel by.
    getattr(pandas.DataFrame({"src": SRC, "dst": DST}), method)(name)


def _triples(name: str) -> None:
    pytest.importorskip("rdflib")
    lines = (f"<n:{src}> <p:to> <n:{dst}> ." for src, dst in PAIRS)
    Path(name).write_text("\n".join(lines))


WRITERS: dict[str, Callable[[], Any]] = {
    "e.mtx": _matrix(scipy.io.mmwrite, "e.mtx"),
    "e.mat": _matrix(lambda name, matrix: scipy.io.savemat(name, {"matrix": matrix}), "e.mat"),
    "sparse.npz": _matrix(scipy.sparse.save_npz, "sparse.npz"),
    "e.npz": lambda: np.savez("e.npz", src=SRC, dst=DST),
    "e.graph": lambda: Path("e.graph").write_text("% comment\n3 3\n2 3\n\n2\n"),
    "e.graphml": lambda: _networkx("e.graphml"),
    "e.gexf": lambda: _networkx("e.gexf"),
    "e.gml": lambda: _networkx("e.gml"),
    "e.pt": lambda: torch.save(Data(edge_index=torch.tensor([SRC.tolist(), DST.tolist()])), "e.pt"),
    "e.sqlite": lambda: _sqlite("e.sqlite"),
    "e.h5": lambda: _hdf5("e.h5"),
    "e.avro": lambda: _avro("e.avro"),
    "e.pkl": lambda: _frame("e.pkl", "to_pickle"),
    "e.xlsx": lambda: _frame("e.xlsx", "to_excel"),
    "e.nt": lambda: _triples("e.nt"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_lines_of_a_refusal_build_the_graph(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS[name]()
    program = _refused(Path(name)).program
    assert len(program) == 3
    exec("\n".join(program), {})
    graph = Graph.open(tmp_path / "graph")
    assert sum(edges.count for edges in graph.schema.edges.values()) == len(PAIRS)
    assert sum(nodes.count for nodes in graph.schema.nodes.values()) == 3


@pytest.mark.parametrize("ending", ["h5", "avro", "tfrecord", "nt", "ttl", "xlsx", "metis", "gexf", "pth"])
def test_the_lines_are_python(ending: str, tmp_path: Path) -> None:
    (tmp_path / f"it's.{ending}").write_text("x")
    program = _refused(tmp_path / f"it's.{ending}").program
    assert len(program) == 3
    assert "build_graph(" in program[-1]
    compile("\n".join(program), "refusal", "exec")


@pytest.mark.parametrize("name", ["e.pt", "e.pkl"])
def test_pickles_are_never_loaded(name: str, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harmed"),)

    (tmp_path / name).write_bytes(pickle.dumps(Harm()))
    assert "they can run code, and are never loaded here" in str(_refused(tmp_path / name))
    assert not (tmp_path / "harmed").exists()


def test_archives_are_to_be_unpacked(tmp_path: Path) -> None:
    for name in ("a.zip", "b.tar"):
        (tmp_path / name).write_bytes(b"\xfd7zXZ\0")
        assert str(_refused(tmp_path / name)).endswith(f"{name}: an archive: unpack it")


@pytest.mark.parametrize(
    ("log", "read"),
    [
        ("_delta_log/00000.json", "deltalake.DeltaTable("),
        ("metadata/v1.metadata.json", "StaticTable.from_metadata("),
    ],
)
def test_a_directory_whose_log_says_which_files_are_rows(tmp_path: Path, log: str, read: str) -> None:
    for name in (log, "part-0.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    program = _refused(tmp_path).program
    assert read in program[1]
    compile("\n".join(program), "refusal", "exec")


def test_the_command_line_prints_the_lines(tmp_path: Path) -> None:
    (tmp_path / "e.mtx").write_text("x")
    done = run_here("partition", str(tmp_path / "graph"), "--edges", str(tmp_path / "e.mtx"))
    assert done.returncode == 2
    first, *lines = done.stderr.splitlines()
    assert first == f"gigl-loader: {tmp_path}/e.mtx: no reader for MatrixMarket; in Python:"
    assert [line.strip() for line in lines] == list(_refused(tmp_path / "e.mtx").program)


def test_a_directory_of_such_files_is_refused_as_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "e.h5").write_text("x")
    with pytest.raises(ForeignFile, match="no reader for HDF5"):
        open_table(str(tmp_path / "in"), role="edges")
