"""The documentation as a site: every link leads somewhere, every public name is in the reference."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import CHROMIUM, DRIVER, browser, show_as
from tests.support.leftovers import wait_until
from tests.unit.test_public_names import PACKAGES, names_of

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


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(site: Path, package: str) -> None:
    documented = set(re.findall(r'id="([\w.]+)"', (site / "reference" / "index.html").read_text()))
    module = importlib.import_module(package)
    paths = {_path(getattr(module, name)) for name in names_of(module)} - {None}
    assert paths
    assert paths <= documented, paths - documented


def _path(value: Any) -> str | None:
    """Return where a class or function is defined. Type variables are not documented."""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else None


def test_every_name_that_a_page_imports_is_in_the_reference(site: Path) -> None:
    documented = set(re.findall(r'id="([\w.]+)"', (site / "reference" / "index.html").read_text()))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    imports = re.compile(r"^ *from (gigl_[\w.]+) import ([\w, ]+)$", re.MULTILINE)
    found = [line for page in pages for line in imports.findall(page.read_text())]
    values = [
        getattr(importlib.import_module(module), name)
        for module, names in found
        for name in names.split(", ")
    ]
    assert len(values) > 20
    assert {_path(value) for value in values} <= documented


def test_the_reference_has_arguments_as_lists(site: Path) -> None:
    reference = (site / "reference" / "index.html").read_text()
    assert "Neighbours per hop, for every edge type" in reference
    assert ":class:" not in reference


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("temporal", "loader/"),
        ("HGT", "migration/"),
        ("PPR", "loader/"),
        ("LABOR", "loader/"),
        ("quantised", "tables/"),
        ("replicas", "graph-store/"),
    ],
)
def test_the_search_finds_the_page_of_a_word(site: Path, word: str, page: str) -> None:
    """The index has the words of each section; the search looks for whole words in it."""
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    sections = [
        each["location"]
        for each in index
        if re.search(rf"\b{word}\b", f"{each['title']} {each['text']}", re.IGNORECASE)
    ]
    assert any(location.startswith(page) for location in sections), sections


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://[^"]+\.(?:js|css)', page)


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site at a port of this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium and its driver")
def test_pages_fit_screens_and_diagrams_need_no_network(address: str, tmp_path: Path) -> None:
    pages = sorted(str(page.relative_to(ROOT / "docs"))[:-3] for page in (ROOT / "docs").rglob("*.md"))
    with browser(tmp_path) as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["https://*"]})
        for width in (1280, 390):
            show_as(driver, width=width, dark=False)
            for page in pages:
                driver.get(address + page.removesuffix("index"))
                assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), (
                    page
                )
        if (ROOT / "build/mermaid.min.js").exists():  # make docs puts it there.
            driver.get(f"{address}internals/architecture/")
            heights = "return [...document.querySelectorAll('div.mermaid')].map(each => each.clientHeight)"
            diagrams = (ROOT / "docs/internals/architecture.md").read_text().count("```mermaid")
            assert diagrams > 3
            assert wait_until(lambda: len(driver.execute_script(heights)) == diagrams, seconds=30)
            assert min(driver.execute_script(heights)) > 50
