"""Links between pages: each leads to a file that exists, and to a heading that the file has."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_EXAMPLES = ("examples/**/*.md", "examples/**/*.ipynb")
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "benchmarks/*.md", *_EXAMPLES)
    for path in ROOT.glob(pattern)
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def prose_of(page: Path) -> str:
    """Return the text of a page, or of the cells of a notebook that are text, without blocks of code."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return _FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", prose_of(page), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in _LINK.findall(prose_of(page)):
        path, _, anchor = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_pages_that_the_code_names_exist() -> None:
    command = [
        "git",
        "grep",
        "-hoE",
        r"docs/[a-z0-9/-]+\.md(#[a-z0-9-]+)?",
        "--",
        "*.py",
        "*.h",
        "*.cc",
        "*.yaml",
        "*.sh",
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    if found.returncode != 0:
        pytest.skip("no git checkout")
    for name in sorted(set(found.stdout.split())):
        path, _, anchor = name.partition("#")
        assert (ROOT / path).exists(), name
        assert not anchor or anchor in anchors(ROOT / path), name
