"""The package graph of the Debian archive, from the lists that apt keeps on a Debian machine.

Nodes are packages; Depends, Recommends and Suggests are edge types, each in both directions. A
package's features are the hashed words of its name and description, its label is its section.
"""

from __future__ import annotations

import math
import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

__all__ = ["APT_LISTS", "debian_packages", "package_lists", "read_stanzas"]

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
    """Return the edges of each relation, ``[2, E]``. A virtual package stands for all who provide it."""
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
