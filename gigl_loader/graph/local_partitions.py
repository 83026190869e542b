"""Partitions of a graph that lie on this host, of those that the graph has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from gigl_loader.graph.folder import Folder
from gigl_loader.graph.graph import Graph, folder_at
from gigl_loader.graph.manifest import Manifest, feature_files, files_of, files_of_part, part_of
from gigl_loader.options import TopologyScope, Verify


def open_partitions(
    path: str | os.PathLike[str],
    partitions: int | Sequence[int] | None,
    *,
    topology: TopologyScope = "own",
    verify: Verify = "lazy",
) -> Graph:
    """Open ``partitions`` of the graph at ``path``, by default all that exist there.

    Raises ``ValueError`` for missing partitions and for missing topology, and what ``Graph.open`` raises.
    """
    folder = folder_at(path)
    manifest = Manifest.read(folder)
    schema = manifest.schema
    there = _present_parts(folder, manifest, topology)
    wanted = there if partitions is None else _part_numbers(partitions)
    absent = sorted(set(wanted).difference(there))
    if absent or not wanted:
        raise ValueError(
            f"partitions {_numbers(absent or range(schema.num_partitions))} do not lie at {folder}: of "
            f"{schema.num_partitions}, it has {_numbers(there)}"
        )
    if topology == "all":
        _check_topology(folder, manifest, wanted)
    return Graph.open(folder, parts=wanted, topology=topology, verify=verify)


def _check_topology(folder: Folder, manifest: Manifest, parts: Sequence[int]) -> None:
    """Raise ``ValueError`` where files but features of other partitions than ``parts`` are missing."""
    there = set(folder.names())
    others = [part for part in range(manifest.schema.num_partitions) if part not in parts]
    missing = [name for name in files_of(manifest.schema, others, features_of=()) if name not in there]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ValueError(
            f"topology all needs the topology of every partition at {folder}, which lacks {shown}: run "
            f"gigl-loader fetch SOURCE {folder} --partition {','.join(map(str, parts))} --topology all"
        )


def _part_numbers(partitions: Any) -> list[int]:
    given = [partitions] if isinstance(partitions, int) else list(partitions)
    if not given or any(type(part) is not int for part in given):
        raise TypeError(f"partitions must be a whole number or a list of some, got {partitions!r}")
    return sorted(set(given))


def _present_parts(folder: Folder, manifest: Manifest, topology: TopologyScope) -> list[int]:
    """Return the partitions that are in ``folder``, also incomplete ones: these are damaged, not absent.

    With topology "all", partitions of which no features lie there are absent.
    """
    schema, parts = manifest.schema, range(manifest.schema.num_partitions)
    names = [name for name in folder.names() if name in manifest.files]
    if topology == "all" and any(feature_files(files_of_part(schema, part)) for part in parts):
        names = feature_files(names)
    there = {part_of(name) for name in names}
    return [part for part in parts if part in there or not files_of_part(schema, part)]


def _numbers(parts: Iterable[int]) -> str:
    return ", ".join(map(str, parts)) or "none"
