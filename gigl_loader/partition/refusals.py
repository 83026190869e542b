"""Refusals of tables that options of the command line, or lines of Python, would help."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType, NodeType


class OptionsNeeded(FormatError, ValueError):
    """Tables that cannot be built from as they are. ``options`` of the command line would help.

    Where a table can be read in several ways, ``readings`` has the options of each. Each of ``files`` is one
    more reading: what to give in place of the FILES of an option, such as a query. ``options`` are those that
    all readings need.
    """

    def __init__(
        self,
        problems: Sequence[str],
        options: Sequence[str] = (),
        readings: Sequence[Sequence[str]] = (),
        files: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.problems = "; ".join(problems)
        self.options = list(options)
        self.readings = [list(each) for each in readings]
        self.files = [dict(each) for each in files]
        given = [shlex.join([*options, *each]) for each in self.readings or ([] if files else [[]])]
        added = [f"Add {text}" for text in [" or ".join(given)] if text]
        added += [f"Give {new} in place of {old}" for each in self.files for old, new in each.items()]
        super().__init__(self.problems + (f". {' or: '.join(added)}" if added else ""))


def quoted(name: str) -> str:
    """Return the name of a column as options write it: in double quotes if it has a character of theirs."""
    return _in_quotes(name) if set(name) & set('=,:"*?[') else name


def type_text(kind: NodeType | EdgeType) -> str:
    """Return a type as options write it: names with a character of theirs are in double quotes."""
    names = [kind] if isinstance(kind, str) else kind
    return ",".join(_in_quotes(name) if set(name) & set('=,:"/') else name for name in names)


def _in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ForeignFile(FormatError, ValueError):
    """A file of a kind that has no reader. ``program`` are lines of Python that build a graph from it."""

    def __init__(self, reason: str, program: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.program = tuple(program)

    def __str__(self) -> str:
        return "\n    ".join([str(self.args[0]), *self.program])


class _Format(NamedTuple):
    """A kind of file. Its columns, or variables, are called as examples."""

    name: str
    library: str
    read: str
    """Statement that reads ``{file}``."""
    columns: Mapping[str, str]
    """Expression of each column of the edges."""
    edge_type: tuple[str, str, str] = ("node", "to", "node")

    def program(self, file: str) -> list[str]:
        columns = ", ".join(f'"{name}": {expression}' for name, expression in self.columns.items())
        edge_type = ", ".join(f'"{part}"' for part in self.edge_type)
        return [
            f"import pyarrow, {self.library}; from gigl_loader.partition import GraphTables, build_graph",
            self.read.replace("{file}", repr(file)),
            f'build_graph(GraphTables({{({edge_type}): pyarrow.table({{{columns}}})}}), "graph")',
        ]


_ENDS = ("src", "dst")
_OF_MATRIX = {"src": "matrix.row", "dst": "matrix.col", "weight": "matrix.data"}
_OF_ARRAYS = {end: f'file["{end}"][:]' for end in _ENDS}
_OF_FRAME = {end: f'frame["{end}"]' for end in _ENDS}
_OF_ROWS = {end: f'[row["{end}"] for row in rows]' for end in _ENDS}
_OF_PAIRS = {"src": "[pair[0] for pair in pairs]", "dst": "[pair[1] for pair in pairs]"}

_NPZ = _Format("NumPy's .npz (.npy files are read)", "numpy", "file = numpy.load({file})", _OF_ARRAYS)
_SPARSE = _Format(
    "SciPy's .npz", "scipy.sparse", "matrix = scipy.sparse.load_npz({file}).tocoo()", _OF_MATRIX
)
_RDF = _Format(
    "RDF",
    "rdflib",
    "rows = [[str(term) for term in row] for row in rdflib.Graph().parse({file})]",
    {name: f"[row[{at}] for row in rows]" for at, name in enumerate(("src", "predicate", "dst"))},
    ("entity", "@predicate", "entity"),
)
_FORMATS: Mapping[tuple[str, ...], _Format] = {
    (".h5", ".hdf5"): _Format("HDF5", "h5py", "file = h5py.File({file})", _OF_ARRAYS),
    (".npz",): _NPZ,
    (".mtx",): _Format("MatrixMarket", "scipy.io", "matrix = scipy.io.mmread({file}).tocoo()", _OF_MATRIX),
    (".mat",): _Format(
        "MATLAB", "scipy.io", 'matrix = scipy.io.loadmat({file})["matrix"].tocoo()', _OF_MATRIX
    ),
    (".graph", ".metis"): _Format(
        "METIS (lists of edges are read from .txt files)",
        "pathlib",
        "pairs = [(node, int(word) - 1) for node, line in enumerate([line for line in "
        "pathlib.Path({file}).read_text().splitlines() if line[:1] != '%'][1:]) for word in line.split()]",
        _OF_PAIRS,
    ),
    (".gr", ".col"): _Format(
        "DIMACS",
        "pathlib",
        "pairs = [[int(word) for word in line.split()[1:3]] for line in "
        "pathlib.Path({file}).read_text().splitlines() if line[:2] in ('a ', 'e ')]",
        _OF_PAIRS,
    ),
    (".net", ".paj"): _Format(
        "Pajek", "networkx", "pairs = [*networkx.read_pajek({file}).to_directed().edges]", _OF_PAIRS
    ),
    (".dl",): _Format(
        "UCINET's DL",
        "pathlib, re",
        "pairs = [line.split()[:2] for line in re.split(r'(?i)data:\\s*', "
        "pathlib.Path({file}).read_text())[1].splitlines()]",
        _OF_PAIRS,
    ),
    **{
        (f".{name.lower()}",): _Format(
            name,
            "networkx",
            f"pairs = [*networkx.read_{name.lower()}({{file}}).to_directed().edges]",
            _OF_PAIRS,
        )
        for name in ("GraphML", "GEXF", "GML")
    },
    (".tfrecord", ".tfrecords"): _Format(
        "TFRecord",
        "tensorflow",
        "rows = [{name: value.int64_list.value[0] for name, value in tensorflow.train.Example.FromString("
        "record.numpy()).features.feature.items()} for record in tensorflow.data.TFRecordDataset({file})]",
        _OF_ROWS,
    ),
    (".avro",): _Format(
        "Avro",
        "fastavro, io, pathlib",
        "rows = [*fastavro.reader(io.BytesIO(pathlib.Path({file}).read_bytes()))]",
        _OF_ROWS,
    ),
    (".nt", ".nq", ".ttl", ".rdf", ".owl"): _RDF,
    (".xlsx", ".xls"): _Format("Excel", "pandas", "frame = pandas.read_excel({file})", _OF_FRAME),
    (".db", ".sqlite", ".sqlite3"): _Format(
        "SQLite",
        "sqlite3",
        'pairs = sqlite3.connect({file}).execute("SELECT src, dst FROM edges").fetchall()',
        _OF_PAIRS,
    ),
    (".lance",): _Format("Lance", "lance", "frame = lance.dataset({file}).to_table()", _OF_FRAME),
    (".pt", ".pth"): _Format(
        "PyTorch's pickles (of a PyG Data, tables_from_pyg(data) makes all tables)",
        "torch",
        "data = torch.load({file}, weights_only=False)",
        {"src": "data.edge_index[0].numpy()", "dst": "data.edge_index[1].numpy()"},
    ),
    (".pkl", ".pickle"): _Format("pickles", "pandas", "frame = pandas.read_pickle({file})", _OF_FRAME),
}
_MARKS: Mapping[str, str] = {
    r"%%MatrixMarket": ".mtx",
    r"\*(?i:vertices|network)\b": ".net",
    r"(c .*\n|c\n)*p (sp|edge|col|max|aux)\b": ".gr",
    r"(?i:dl)\s+n\s*=": ".dl",
}
"""First lines of texts that have no reader, whatever their endings, and an ending of their kind."""
_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar")
_DELTA = _Format(
    "Delta Lake", "deltalake", "frame = deltalake.DeltaTable({file}).to_pyarrow_table()", _OF_FRAME
)
_ICEBERG = _Format(
    "Iceberg",
    "pyiceberg.table",
    "frame = pyiceberg.table.StaticTable.from_metadata({file}).scan().to_arrow()",
    _OF_FRAME,
)


def foreign_file(path: object, ending: str) -> ForeignFile | None:
    """Return the refusal of a file with this ending. ``None`` for an ending of no known kind."""
    if ending in _ARCHIVES:
        return ForeignFile(f"{path}: an archive: unpack it")
    if (found := next((each for endings, each in _FORMATS.items() if ending in endings), None)) is None:
        return None
    if found is _NPZ and isinstance(path, Path) and zipfile.is_zipfile(path):
        found = _SPARSE if "format.npy" in zipfile.ZipFile(path).namelist() else _NPZ
    danger = ": they can run code, and are never loaded here" if ending in _PICKLES else ""
    return ForeignFile(f"{path}: no reader for {found.name}{danger}; in Python:", found.program(str(path)))


def foreign_text(path: object, text: str) -> ForeignFile | None:
    """Return the refusal of a text that begins as one of a kind without a reader. ``None``: it does not."""
    ending = next((ending for mark, ending in _MARKS.items() if re.match(mark, text)), None)
    return None if ending is None else foreign_file(path, ending)


def foreign_directory(path: str, files: Iterable[tuple[str, ...]]) -> ForeignFile | None:
    """Return the refusal of a directory whose files are not all rows of its table: a log says which are.

    ``files`` are the parts of their paths. ``None`` for a directory without a log.
    """
    for parts in files:
        if "_delta_log" in parts:
            return ForeignFile(f"{path}: no reader for {_DELTA.name}; in Python:", _DELTA.program(path))
        if parts[-2:-1] == ("metadata",) and parts[-1].endswith(".metadata.json"):
            program = _ICEBERG.program("/".join((path, *parts)))
            return ForeignFile(f"{path}: no reader for {_ICEBERG.name}; in Python:", program)
    return None
