"""docs/versions.md: each promise names tests that exist, and its numbers are those of this build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import gigl_loader
from gigl_loader.graph.manifest import FORMAT_VERSION
from gigl_loader.native import draws
from gigl_loader.rpc.versions import WIRE_VERSION

ROOT = Path(__file__).parents[2]
MINOR = gigl_loader.__version__.rpartition(".")[0]

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="copied without the pages")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a heading."""
    page = (ROOT / "docs/versions.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_each_promise_names_a_test_that_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for promise, _, tests in rows("Promises"):
        names = re.findall(r"`([^`]+)`", tests)
        assert names, promise
        for name in names:
            target = name.removeprefix("make ")
            assert (ROOT / name).exists() or re.search(rf"^{target}:", makefile, re.M), name


def test_the_newest_row_is_this_build() -> None:
    version, *_, drawn, wire, formats = rows("Support")[0]
    assert (version, drawn, wire) == (MINOR, str(draws.DRAW_SPECIFICATION), str(WIRE_VERSION))
    assert formats == f"reads 1 to {FORMAT_VERSION}"


def test_the_version_is_the_same_everywhere() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == gigl_loader.__version__
    newest = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert newest == gigl_loader.__version__
