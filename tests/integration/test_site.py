"""The documentation as a site: every link leads somewhere, every public name is in the reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gigl_client
import gigl_loader
import gigl_loader.partition

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the tests were copied without the pages"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


def test_every_page_is_in_the_menu(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.md")} - {"index"}
    menu = set(re.findall(r"^ +- .*: ([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.M)) - {"index"}
    assert menu == pages
    assert {str(page.parent.relative_to(site)) for page in site.rglob("index.html")} >= pages


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    reference = (site / "reference" / "index.html").read_text()
    for module in (gigl_loader, gigl_client, gigl_loader.partition):
        for name in module.__all__:
            assert re.search(rf'id="[\w.]+\.{name}"', reference), name
    assert "Neighbours per hop, for every edge type" in reference
    assert ":class:" not in reference


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://[^"]+\.(?:js|css)', page)
