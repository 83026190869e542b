"""The architecture as a table: which part may import which."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "gigl_loader": ROOT,
    "gigl_server": ROOT / "servers",
    "gigl_ray": ROOT / "servers",
    "gigl_client": ROOT / "clients",
}

VALUES = frozenset(
    {
        "arrays",
        "errors",
        "group",
        "logs",
        "memfile",
        "options",
        "printable",
        "processes",
        "regular_files",
        "resources",
        "retry",
        "sharding",
        "shared",
        "strict_json",
        "tensors",
        "threads",
        "topology",
        "tracing",
    }
)
EVERYTHING = frozenset({""})

MAY_IMPORT = {
    **dict.fromkeys(sorted(VALUES), VALUES),
    "memfile": VALUES | {"native.map_file"},
    "native": frozenset({"arrays"}),
    "device": VALUES,
    "graph": VALUES | {"native"},
    "partition": VALUES | {"native", "graph", "splits"},
    "channel": VALUES | {"native"},
    "sampling": VALUES | {"native", "graph", "channel"},
    "rpc": VALUES | {"native", "graph.schema", "channel.frame", "sampling.store"},
    "workers": VALUES | {"native", "graph", "channel", "sampling"},
    "hosts": VALUES | {"graph", "sampling", "workers.config", "rpc"},
    "splits": VALUES | {"native", "graph.schema"},
    "queries": VALUES | {"graph.schema", "splits"},
    "dataset": VALUES | {"queries", "graph", "sampling", "workers", "hosts.rendezvous"},
    "loaders": VALUES
    | {
        "native",
        "graph",
        "sampling.columns",
        "sampling.frame_schema",
        "sampling.khop",
        "sampling.negatives",
        "sampling.new_nodes",
        "sampling.plan",
        "sampling.plans",
        "sampling.request",
        "sampling.schedule",
        "sampling.source",
        "sampling.ppr_sampler",
        "sampling.walk_sampler",
        "channel.frame",
        "channel.ring",
    },
    "glt": VALUES | {"native", "dataset", "sampling"},
    "pyg": VALUES | {"native", "graph.schema", "loaders", "sampling"},
    "lightning": frozenset({"loaders", "lightning_epochs"}),
    "lightning_epochs": frozenset({"loaders"}),
    "demo": EVERYTHING,
    "bench": EVERYTHING,
    "cli": EVERYTHING,
}
"""By part of ``gigl_loader``: prefixes of module names, besides the part's own."""

MAY_IMPORT_LAZILY = {
    "dataset": frozenset({"hosts", "partition", "rpc"}),
    "glt": frozenset({"graph.graph"}),
    "loaders": frozenset({"device"}),
    "queries": frozenset(
        {"loaders", "pyg", "sampling.khop", "sampling.labels", "sampling.partitioned", "sampling.store"}
    ),
}
"""What a part may import on top of that inside functions, where it is needed, and for type checkers."""


class Import(NamedTuple):
    """One import of one of our modules."""

    file: Path
    line: int
    module: str
    lazy: bool


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Yield the dotted name, without the package, and the file of every module."""
    top = PACKAGES[package] / package
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


@cache
def imports(path: Path) -> list[Import]:
    """Return every import of a module of ours in a file, those for type checkers included."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node, lazy in _nodes(ast.parse(path.read_text()), lazy=False):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in PACKAGES:
                yield Import(path, node.lineno, name, lazy)


def _nodes(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or _for_types(child)
        yield child, inside
        yield from _nodes(child, lazy=inside)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def allowed(part: str, found: Import) -> bool:
    package, _, module = found.module.partition(".")
    if package != "gigl_loader":
        return MAY_IMPORT[part] == EVERYTHING
    if module == "__version__":
        return True
    prefixes = MAY_IMPORT[part] | {part}
    if found.lazy:
        prefixes |= MAY_IMPORT_LAZILY.get(part, frozenset())
    return any(prefix == "" or f"{module}.".startswith(f"{prefix}.") for prefix in prefixes)


def test_every_part_has_a_row() -> None:
    parts = {name.partition(".")[0] for name, _ in modules("gigl_loader")} - {""}
    assert parts <= MAY_IMPORT.keys()


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_parts_import_only_what_the_table_allows(part: str) -> None:
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line}: {found.module}"
        for name, path in modules("gigl_loader")
        if name.partition(".")[0] == part
        for found in imports(path)
        if not allowed(part, found)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["gigl_server", "gigl_client"])
def test_servers_and_clients_know_neither_each_other_nor_loaders(package: str) -> None:
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line}: {found.module}"
        for _, path in modules(package)
        for found in imports(path)
        if not found.module.startswith((package, "gigl_loader.")) or ".loaders" in found.module
    ]
    assert wrong == []


def test_what_ray_places_is_made_of_values_and_server_processes() -> None:
    may = ("gigl_ray", "gigl_loader.errors", "gigl_loader.retry", "gigl_loader.rpc.", "gigl_server.")
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line}: {found.module}"
        for _, path in modules("gigl_ray")
        for found in imports(path)
        if not found.module.startswith(may)
    ]
    assert wrong == []


SERVER_ROOMS = ("frames", "sessions", "sampling", "cluster", "partitions", "ports")
"""Of ``gigl_server``, as floors: a room imports from those before it, and the values below."""
SERVER_VALUES = frozenset(
    {
        "admission",
        "logs",
        "preflight",
        "certificate_renewal",
        "config",
        "counters",
        "supervision",
    }
)


def test_rooms_of_a_server_are_floors() -> None:
    """Imports for type checkers count as well: there is no circle of rooms."""
    wrong = []
    for name, path in modules("gigl_server"):
        room = name.partition(".")[0]
        if room not in SERVER_ROOMS:
            continue
        below = {*SERVER_ROOMS[: SERVER_ROOMS.index(room) + 1], *SERVER_VALUES}
        wrong += [
            f"{name}:{found.line}: {found.module}"
            for found in imports(path)
            if found.module.startswith("gigl_server.") and found.module.split(".")[1] not in below
        ]
    assert wrong == []


def import_graph(*, lazy: bool) -> dict[str, set[str]]:
    """Return which modules each module imports: when it is imported, or also later and for type checkers."""
    files = {f"{package}.{name}".rstrip("."): path for package in PACKAGES for name, path in modules(package)}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = [found.module for found in imports(path) if lazy or not found.lazy]
        known = {
            next((each for each in (name, name.rpartition(".")[0]) if each in files), "") for name in names
        }
        graph[module] = known - {module, ""}
    return graph


def test_there_is_no_circle_of_imports() -> None:
    """Of those that run when a module is imported."""
    graph = import_graph(lazy=False)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


LARGEST_CIRCLE = {
    "gigl_loader.demo": 2,
    "gigl_loader.graph": 2,
    "gigl_loader.partition": 4,
    "gigl_loader.rpc": 2,
    "gigl_loader.sampling": 4,
    "gigl_server.cluster": 3,
}
"""By package: the files of its largest circle of imports. Other packages have none."""


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return each set of modules that need each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        left, found = [module], set[str]()
        while left:
            fresh = graph.get(left.pop(), set()) - found
            found |= fresh
            left += fresh
        reached[module] = found
    of_each = {
        frozenset(other for other in found if each in reached[other]) for each, found in reached.items()
    }
    return [sorted(circle) for circle in of_each if circle]


def test_circles_of_imports_stay_small() -> None:
    """Imports inside functions and for type checkers count as well, but ``gigl_loader.__version__``."""
    graph = import_graph(lazy=True)
    graph = {each: found - {"gigl_loader"} for each, found in graph.items() if each != "gigl_loader"}
    found: dict[str, list[list[str]]] = {}
    for circle in circles(graph):
        found.setdefault(".".join(circle[0].split(".")[:2]), []).append(circle)
    too_large = {
        package: each
        for package, of_package in found.items()
        if len(each := max(of_package, key=len)) > LARGEST_CIRCLE.get(package, 1)
    }
    assert too_large == {}


def test_the_table_catches_what_it_should() -> None:
    here = Path(__file__)
    assert not allowed("channel", Import(here, 1, "gigl_loader.sampling.source", lazy=True))
    assert not allowed("loaders", Import(here, 1, "gigl_loader.workers.source.WorkerSource", lazy=False))
    assert not allowed("dataset", Import(here, 1, "gigl_loader.partition.build", lazy=False))
    assert allowed("dataset", Import(here, 1, "gigl_loader.partition.build", lazy=True))


HEAVY = ("torch", "torch_geometric", "grpc", "pyarrow", "pandas", "ray", "scipy", "typer", "rich")


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import gigl_loader", HEAVY),
        ("import gigl_loader.workers.main", HEAVY),
        ("import gigl_loader.sampling.neighbor_sampler, gigl_loader.channel.frame", HEAVY),
        ("import gigl_loader.dataset", HEAVY),
        ("import gigl_loader.partition", HEAVY),
        ("import gigl_loader.partition.tasks, gigl_loader.partition.ray_executor", HEAVY),
        ("import gigl_loader.rpc.remote_store", ("torch", "torch_geometric", "grpc", "cryptography")),
        ("import gigl_loader.hosts.peers", ("torch", "torch_geometric", "grpc", "cryptography")),
        ("import gigl_server.child", ("torch", "torch_geometric", "cryptography")),
        ("from gigl_loader import DistNeighborLoader", ("grpc", "pyarrow", "typer", "gigl_loader.device")),
        ("import gigl_loader.cli", ("torch", "torch_geometric", "grpc", "pyarrow", "numpy")),
    ],
)
def test_imports_stay_light(statement: str, heavy: tuple[str, ...]) -> None:
    """Sampling processes must start at once and stay small; --help must be instant."""
    program = f"import sys\n{statement}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT).stdout
    assert [name for name in heavy if name in json.loads(output)] == []


def test_what_a_module_exports_is_in_order() -> None:
    wrong = [
        f"{package}.{name}: {exported}"
        for package in PACKAGES
        for name, path in modules(package)
        if (exported := _exported(path)) != sorted(exported, key=_rank)
    ]
    assert wrong == []


def _rank(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _exported(path: Path) -> list[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def test_nothing_is_public_by_accident() -> None:
    import gigl_loader

    assert gigl_loader.__all__ == [
        "AuditReport",
        "BaseDistLoader",
        "CustomSamplerOptions",
        "Dataset",
        "DistABLPLoader",
        "DistDataset",
        "DistLinkNeighborLoader",
        "DistNeighborLoader",
        "DistSubgraphLoader",
        "FormatError",
        "GiglError",
        "KHopNeighborSamplerOptions",
        "LaborSamplerOptions",
        "NegativeSampling",
        "NewNode",
        "PPRMetaPath",
        "PPRSamplerOptions",
        "RandomWalkSamplerOptions",
        "Sampler",
        "SamplingError",
        "SharedTensors",
        "StatsWriter",
        "StorageUnavailable",
        "WorkerDied",
        "audit",
        "inference",
        "write_embeddings",
    ]
