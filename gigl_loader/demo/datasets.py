"""Graphs to learn on, each a PyG object with features ``x``, labels ``y`` and masks for three splits.

One is the package graph of the Debian archive, from the lists that apt keeps on a Debian machine: nodes are
packages; Depends, Recommends and Suggests are edge types, each in both directions. A package's features are
the hashed words of its name and description, its label is its section.
"""

from __future__ import annotations

import math
import re
import subprocess
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from gigl_loader.demo.choices import Recipe, SyntheticSize, dataset_kind
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, EdgeType

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

APT_LISTS = Path("/var/lib/apt/lists")
APT_HELPER = Path("/usr/lib/apt/apt-helper")
FEATURES = 512

# What each edge type is read from, and the name of its reverse.
RELATIONS = {
    "depends": ("Pre-Depends", "Depends"),
    "recommends": ("Recommends",),
    "suggests": ("Suggests",),
}

_FIELDS = frozenset(
    {"Package", "Section", "Description", "Provides", *(f for fs in RELATIONS.values() for f in fs)}
)
_VERSION_OR_ARCHITECTURE = re.compile(r"\(.*?\)|:\w+|\[.*?\]")

Stanza = Mapping[str, str]


def debian_packages(lists: Path) -> tuple[HeteroData, list[str]]:
    """Return the graph of all packages in apt's ``lists``, and the names of the sections (the classes)."""
    from torch_geometric.data import HeteroData

    packages = _first_of_each(_stanzas_of(lists))
    sections = sorted({_section(stanza) for stanza in packages.values()})
    known = {name: label for label, name in enumerate(sections)}
    data = HeteroData()
    data["package"].x = torch.from_numpy(_word_features(packages))
    data["package"].y = torch.tensor([known[_section(stanza)] for stanza in packages.values()])
    for relation, edges in _relations(packages).items():
        edge_index = torch.from_numpy(edges)
        data["package", relation, "package"].edge_index = edge_index
        data["package", f"rev_{relation}", "package"].edge_index = edge_index.flip(0)
    return data, sections


def package_lists(lists: Path) -> list[Path]:
    """Return the files of apt's ``lists`` that name packages, sorted."""
    return sorted(path for path in lists.glob("*_Packages*") if path.is_file())


def _stanzas_of(lists: Path) -> Iterator[Stanza]:
    files = package_lists(lists)
    if not files:
        raise FileNotFoundError(
            f"no package lists in {lists}: this needs a Debian machine after `apt-get update`"
        )
    for path in files:
        yield from read_stanzas(_text(path).splitlines())


def _text(path: Path) -> str:
    """Return the text of a list. Only apt knows every way in which its lists may be compressed."""
    if path.name.endswith("_Packages"):
        return path.read_text(encoding="utf-8", errors="replace")
    if not APT_HELPER.exists():
        raise FileNotFoundError(f"{path} is compressed and {APT_HELPER} is missing")
    command = [str(APT_HELPER), "cat-file", str(path)]
    run = subprocess.run(command, capture_output=True, check=False, timeout=120)
    if run.returncode:
        raise OSError(
            f"{path}: apt-helper ended with {run.returncode}: {run.stderr.decode(errors='replace')}"
        )
    return run.stdout.decode("utf-8", errors="replace")


def read_stanzas(lines: Iterable[str]) -> Iterator[Stanza]:
    """Yield the fields that matter of each stanza of a package list (format: deb822)."""
    stanza: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            if "Package" in stanza:
                yield stanza
            stanza = {}
            continue
        name, colon, value = line.partition(":")
        if colon and not line[0].isspace() and name in _FIELDS:
            stanza[name] = value.strip()
    if "Package" in stanza:
        yield stanza


def _first_of_each(stanzas: Iterable[Stanza]) -> dict[str, Stanza]:
    packages: dict[str, Stanza] = {}
    for stanza in stanzas:
        packages.setdefault(stanza["Package"], stanza)
    return packages


def _section(stanza: Stanza) -> str:
    """Return the section without its archive area: ``contrib/net`` is ``net``."""
    return stanza.get("Section", "unknown").rpartition("/")[2]


def _names(field: str) -> Iterator[str]:
    """Yield the package names in a relation field; of alternatives, all."""
    for name in re.split(r"[,|]", _VERSION_OR_ARCHITECTURE.sub("", field)):
        if name.strip():
            yield name.strip()


def _relations(packages: Mapping[str, Stanza]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the edges of each relation, int64 ``[2, E]``. A virtual package stands for all its providers."""
    index = {name: (place,) for place, name in enumerate(packages)}
    providers: dict[str, list[int]] = {}
    for place, stanza in enumerate(packages.values()):
        for name in _names(stanza.get("Provides", "")):
            providers.setdefault(name, []).append(place)
    relations = {}
    for relation, fields in RELATIONS.items():
        pairs = {
            (place, other)
            for place, stanza in enumerate(packages.values())
            for field in fields
            for name in _names(stanza.get(field, ""))
            for other in index.get(name, providers.get(name, ()))
        }
        relations[relation] = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T.copy()
    return relations


def _word_features(packages: Mapping[str, Stanza]) -> npt.NDArray[np.float32]:
    """Return hashed words, weighted by how rare they are, each row of length one."""
    words = [_words(name, stanza) for name, stanza in packages.items()]
    seen_in = Counter(word for row in words for word in set(row))
    features = np.zeros((len(words), FEATURES), dtype=np.float32)
    for row, line in zip(features, words, strict=True):
        for word in line:
            code = zlib.crc32(word.encode())
            row[code % FEATURES] += math.log(1 + len(words) / seen_in[word]) * (1 if code >> 31 else -1)
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-6)
    return features


def _words(name: str, stanza: Stanza) -> list[str]:
    """Return the words of name and description. How a name begins and ends counts as a word too."""
    text = f"{name} {stanza.get('Description', '')}".lower()
    return [f"^{name[:3]}", f"{name[-4:]}$", *re.findall(r"[a-z]{2,}|\+\+", text)]


LINK_RECIPE = Recipe(epochs=5, batch_size=1024, hidden=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The edges of a data set that are to be predicted. Both ends are of one node type."""

    title: str | None = None
    """Title of the task, where the title of the data set does not name it."""
    edge_type: EdgeType = HOMOGENEOUS_EDGE
    reverse: EdgeType = HOMOGENEOUS_EDGE
    """Type of the reversed edges: ``edge_type`` itself where it holds both directions."""
    recipe: Recipe = LINK_RECIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A data set, with the task of each kind: the label ``y`` of the nodes of type ``target``, or links."""

    title: str
    data: Data | HeteroData
    target: str
    num_classes: int
    recipe: Recipe
    links: Links = field(default_factory=Links)


def default_dataset(task: Literal["node", "link"]) -> str:
    """Return the data set for a task where the user names none."""
    return "debian" if task == "link" and package_lists(APT_LISTS) else "digits"


def load_demonstration(
    name: str, *, seed: int, cache: Path, synthetic: SyntheticSize | None = None
) -> Demonstration:
    """Return ``digits``, ``debian``, ``synthetic``, ``npz:PATH``, ``planetoid:NAME`` or ``ogbn:NAME``.

    Splits are drawn from ``seed`` where the set brings none. Downloads, where there are any, go to ``cache``.
    """
    kind, argument = dataset_kind(name)
    kinds: dict[str, Callable[[], Demonstration]] = {
        "npz": lambda: _npz(Path(argument), seed),
        "planetoid": lambda: _planetoid(argument, cache),
        "ogbn": lambda: _ogbn(argument, cache),
        "digits": lambda: _digits(seed),
        "debian": lambda: _debian(seed),
        "synthetic": lambda: _synthetic(synthetic or SyntheticSize(), seed),
    }
    return kinds[kind]()


def _digits(seed: int) -> Demonstration:
    """Handwritten digits (8 x 8 pixels) of scikit-learn, each linked with its ten nearest neighbours."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph
    except ImportError as error:
        raise ImportError("the digits need scikit-learn: pip install 'gigl-loader[demo]'") from error
    pixels, labels = load_digits(return_X_y=True)
    nearest = kneighbors_graph(pixels, n_neighbors=10).tocoo()
    return _homogeneous(
        "handwritten digits, ten nearest neighbours",
        edges=np.stack([nearest.row, nearest.col]),
        features=pixels / 16,
        labels=labels,
        seed=seed,
        recipe=Recipe(epochs=10, batch_size=128, hidden=64, lr=0.01),
    )


def _debian(seed: int) -> Demonstration:
    data, sections = debian_packages(APT_LISTS)
    _split(data["package"], len(data["package"].y), seed)
    return Demonstration(
        title="packages of the Debian archive and their sections",
        data=data,
        target="package",
        num_classes=len(sections),
        recipe=Recipe(epochs=6, batch_size=1024, fanout=(6, 4)),
        links=Links(
            title="packages of the Debian archive: will A depend on B?",
            edge_type=("package", "depends", "package"),
            reverse=("package", "rev_depends", "package"),
            recipe=Recipe(epochs=5, batch_size=1024, fanout=(4, 2), hidden=64),
        ),
    )


def _synthetic(size: SyntheticSize, seed: int) -> Demonstration:
    """A power-law graph of 16 communities. Features are mostly noise; neighbours show the community."""
    rng = np.random.default_rng(seed)
    communities = 16
    popularity = np.cumsum(rng.pareto(1.6, size.nodes) + 0.2)
    shuffled = rng.permutation(size.nodes)
    source = np.searchsorted(popularity, rng.random(size.edges) * popularity[-1])
    target = shuffled[np.searchsorted(popularity, rng.random(size.edges) * popularity[-1])]
    inside = rng.random(size.edges) < 0.7
    same = target - target % communities + source % communities
    target = np.where(inside & (same < size.nodes), same, target)
    labels = np.arange(size.nodes) % communities
    features = rng.standard_normal((size.nodes, size.dim), dtype=np.float32)
    features += 0.3 * rng.standard_normal((communities, size.dim), dtype=np.float32)[labels]
    return _homogeneous(
        f"synthetic power-law graph of {communities} communities",
        edges=np.stack([source, target]),
        features=features,
        labels=labels,
        seed=seed,
        recipe=Recipe(epochs=3, batch_size=1024),
    )


def _npz(path: Path, seed: int) -> Demonstration:
    """A graph in one .npz file: adjacency ``adj_*`` and features ``attr_*`` as CSR parts, and ``labels``."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            source, target, _ = _coordinates(arrays, "adj")
            rows, columns, values = _coordinates(arrays, "attr")
            features = np.zeros(tuple(arrays["attr_shape"]), dtype=np.float32)
            labels = np.asarray(arrays["labels"])
    except KeyError as error:
        raise ValueError(f"{path}: needs the CSR parts adj_* and attr_*, and labels: {error}") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path}: not an .npz file of plain arrays: {error}") from error
    features[rows, columns] = values
    return _homogeneous(
        path.stem,
        edges=np.stack([source, target]),
        features=features,
        labels=np.unique(labels, return_inverse=True)[1],
        seed=seed,
        recipe=Recipe(epochs=10, batch_size=128),
    )


def _coordinates(arrays: Any, matrix: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return row, column and value of each entry of a CSR matrix stored in parts."""
    indptr, columns = arrays[f"{matrix}_indptr"], arrays[f"{matrix}_indices"]
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if len(rows) != len(columns):
        raise ValueError(f"{matrix}_indptr counts {len(rows)} entries, {matrix}_indices holds {len(columns)}")
    return rows, columns, arrays[f"{matrix}_data"]


def _planetoid(name: str, cache: Path) -> Demonstration:
    """Cora, CiteSeer or PubMed, by PyG's own downloader, with the public split."""
    from torch_geometric.datasets import Planetoid

    try:
        data = Planetoid(str(cache), name, num_train_per_class=20)[0]
    except OSError as error:
        raise ConnectionError(f"could not download planetoid:{name}: {error}") from error
    return Demonstration(
        title=name,
        data=data,
        target="node",
        num_classes=int(data.y.max()) + 1,
        recipe=Recipe(epochs=20, batch_size=64),
    )


def _ogbn(name: str, cache: Path) -> Demonstration:
    """A homogeneous node-property set of the Open Graph Benchmark, by ogb's own downloader."""
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ImportError as error:
        raise ImportError("data sets of the Open Graph Benchmark need ogb: pip install ogb") from error
    try:
        loaded = PygNodePropPredDataset(name=f"ogbn-{name}", root=str(cache))
    except OSError as error:
        raise ConnectionError(f"could not download ogbn:{name}: {error}") from error
    data = loaded[0]
    if "edge_index" not in data or "x" not in data:
        raise ValueError(f"ogbn:{name} is not a homogeneous graph with node features")
    data.y = data.y.view(-1).to(torch.int64)
    for split, places in zip(("train", "val", "test"), loaded.get_idx_split().values(), strict=True):
        data[f"{split}_mask"] = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill_(0, places, True)
    return Demonstration(
        title=f"ogbn-{name}",
        data=data,
        target="node",
        num_classes=loaded.num_classes,
        recipe=Recipe(epochs=5, batch_size=1024, fanout=(15, 10, 5), hidden=256),
    )


def _homogeneous(
    title: str,
    *,
    edges: npt.NDArray[Any],
    features: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    seed: int,
    recipe: Recipe,
) -> Demonstration:
    """Return an undirected graph with random splits."""
    from torch_geometric.data import Data
    from torch_geometric.utils import to_undirected

    edge_index = to_undirected(torch.from_numpy(edges.astype(np.int64)), num_nodes=len(labels))
    data = Data(
        x=torch.from_numpy(features.astype(np.float32, copy=False)),
        y=torch.from_numpy(labels.astype(np.int64)),
        edge_index=edge_index,
        num_nodes=len(labels),
    )
    _split(data, len(labels), seed)
    classes = int(labels.max()) + 1
    return Demonstration(title=title, data=data, target="node", num_classes=classes, recipe=recipe)


def _split(store: Any, count: int, seed: int) -> None:
    """Give each node to train (60 %), val (20 %) or test (20 %)."""
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    parts = torch.tensor_split(shuffled, [count * 6 // 10, count * 8 // 10])
    for name, places in zip(("train", "val", "test"), parts, strict=True):
        store[f"{name}_mask"] = torch.zeros(count, dtype=torch.bool).index_fill_(0, places, True)
