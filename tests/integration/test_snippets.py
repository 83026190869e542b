"""Every Python snippet of the pages runs as it stands.

The snippets of a page run in order and share their names, as a reader would type them in. What a page takes
for granted (a graph, a model, files, a server) is prepared here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import distributed
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.certificates import Authority
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import COMMAND
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
NOT_RUN = {
    ("docs/deploy.md", "it needs machines"),
}
"""Page and reason of every snippet that is marked ``<!-- not run: reason -->``. Keep it short."""

_SNIPPET = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?^ *```python\n(?P<code>.*?)^ *```", re.M | re.S
)
_SERVER = "store0:7070"
_TOKEN = "a-token-of-the-snippets-0123456789"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the tests were copied without the pages"),
]


class Snippet(NamedTuple):
    page: str
    line: int
    code: str
    reason: str | None
    """Why it cannot run."""


def snippets(page: str) -> list[Snippet]:
    text = (ROOT / page).read_text()
    found = []
    for match in _SNIPPET.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        found.append(Snippet(page, line, textwrap.dedent(match["code"]), match["reason"]))
    return found


@pytest.fixture(scope="module", autouse=True)
def first_group() -> None:
    """The first store of a process makes a pipe for signals, which stays: it is not something left."""
    address = f"tcp://127.0.0.1:{free_port()}"
    distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def data() -> Data:
    torch.manual_seed(0)
    nodes = torch.arange(10_000)
    edges = torch.randint(10_000, (2, 50_000))
    return Data(x=torch.randn(10_000, 32), y=nodes % 4, edge_index=edges, train_mask=nodes < 2_000)


@pytest.fixture(scope="module")
def graph(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(data), path, num_partitions=2)
    return path


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages name: a token, an authority, a certificate with its key."""
    folder = tmp_path_factory.mktemp("secrets")
    authority = Authority()
    certificate, key = authority.sign()
    contents = {"token": _TOKEN.encode(), "ca.pem": authority.pem, "host0.pem": certificate, "host0.key": key}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def server(graph: Path, secrets: Path) -> Iterator[str]:
    files = {"token_file": "token", "tls_cert": "host0.pem", "tls_key": "host0.key", "tls_ca": "ca.pem"}
    options: dict[str, Any] = {option: str(secrets / name) for option, name in files.items()}
    with servers_of(graph, 1, **options) as servers:
        yield addresses_of(servers)[0]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


@pytest.fixture
def names(
    data: Data, graph: Path, secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """What pages take for granted, in a directory of its own, as rank 0 of 1."""
    shutil.copytree(secrets, tmp_path / "work")
    (tmp_path / "work" / "graph").symlink_to(graph)
    monkeypatch.chdir(tmp_path / "work")
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    dataset = DistDataset.from_pyg(data)
    with DistNeighborLoader(dataset, [2], "train", batch_size=512, num_workers=0) as loader:
        yield {
            "DistDataset": DistDataset,
            "DistNeighborLoader": DistNeighborLoader,
            "data": data,
            "dataset": dataset,
            "distributed": distributed,
            "loader": loader,
            "model": Model(),
            "os": os,
            "path": "state.pt",
            "torch": torch,
        }
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _prepare(page: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "docs/extend.md":
        functions = [each.code for each in snippets(page) if "(graph, batch, " in each.code]
        Path("my_samplers.py").write_text("\n\n".join(functions))
        monkeypatch.syspath_prepend(str(Path.cwd()))
    if page == "docs/tables.md":
        _build_from_tables(page)
    if page == "docs/internals/graph-format.md":
        Path("graph").unlink()  # It is built there.


def _build_from_tables(page: str) -> None:
    """Write the files of a page and run its commands."""
    text = (ROOT / page).read_text()
    for name, content in re.findall(r"^```csv (\S+)\n(.*?)^```", text, re.M | re.S):
        Path(name).write_text(content)
    [commands] = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    program = f'gigl-loader() {{ {shlex.join(COMMAND)} "$@"; }}\n{commands}'
    subprocess.run(["bash", "-euc", program], check=True, timeout=120)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own, with a newer torch.
@pytest.mark.filterwarnings("ignore:The .srun. command is available")  # Its own, with Slurm here.
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)])
def test_the_snippets_of_a_page_run(
    page: str, server: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(page, names, monkeypatch)
    for snippet in snippets(page):
        if snippet.reason is None:
            # Blank lines first, so that an error names the line of the page.
            code = "\n" * snippet.line + snippet.code.replace(_SERVER, server)
            exec(compile(code, str(ROOT / page), "exec"), names)
    for name in ("loader", "dataset"):
        if hasattr(names[name], "shutdown"):
            names[name].shutdown()
        if hasattr(names[name], "close"):
            names[name].close()
    names.clear()


def test_only_these_snippets_are_not_run() -> None:
    marked = {(found.page, found.reason) for page in PAGES for found in snippets(page) if found.reason}
    assert marked == NOT_RUN


def test_every_snippet_is_found() -> None:
    for page in PAGES:
        assert len(snippets(page)) == (ROOT / page).read_text().count("```python\n")
