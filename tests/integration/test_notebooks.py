"""The notebooks run from top to bottom, with plots and without warnings, and are kept without outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.leftovers import wait_until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
MARK = "GIGL_TEST_NOTEBOOK"
"""Variable by which processes of a notebook are found, also those whose parent has ended."""

PUBLIC = {"gigl_loader", "gigl_loader.partition", "gigl_client"}

CLAIMS: dict[str, tuple[str, Callable[..., bool]]] = {
    # Accuracy of the model of all tables, and of that of the customer table.
    "tables_to_heterogeneous_model.ipynb": (
        r"test accuracy ([\d.]+)%",
        lambda whole, alone: float(whole) > 80 and float(alone) < 40,
    ),
    # How much a metric is inflated: without a leak first.
    "links_in_time.ipynb": (
        r"inflated by a factor of ([\d.]+)",
        lambda honest, *leaks: honest == "1.00" and min(map(float, leaks)) > 1.3,
    ),
    # Batches of both epochs; equal digests are asserted in the notebook.
    "cluster_on_one_machine.ipynb": (r"(\d+) batches in", lambda whole, killed: whole == killed),
    "larger_than_memory.ipynb": (r"all batches are equal, byte for byte", lambda _: True),
}
"""What the text of a notebook says about its outputs: a pattern, and what must hold for its matches."""

_SECONDS = 110
_RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, kernel_name="python3", timeout=100).execute()
nbformat.write(notebook, sys.argv[2])
"""
# A folder of a machine or of a user, and what Jupyter writes about the machine.
_MACHINE = re.compile(r"/(?:home|root|Users|work|tmp|mnt|opt|usr|var)/|[A-Z]:\\")

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the tests were copied without the examples")


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return cells


def execute(name: str, folder: Path) -> list[dict[str, Any]]:
    """Run a notebook by a kernel of its own in an empty folder. Return the outputs of all cells."""
    (folder / "work").mkdir()
    done = folder / name
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "ignore:IProgress not found",  # Of tqdm in torch_geometric, without ipywidgets.
        "OMP_NUM_THREADS": "1",  # threads that wait for each other on a busy machine
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        MARK: str(folder),
    }
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, str(FOLDER / name), str(done)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        cwd=folder / "work",
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return [output for cell in cells_of(done) for output in cell.get("outputs", [])]


def processes_of(folder: Path) -> list[str]:
    """Return the processes that a notebook started and that still run."""
    return [str(process) for process in psutil.process_iter() if _belongs(process, folder)]


def _belongs(process: psutil.Process, folder: Path) -> bool:
    try:
        return bool(process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    outputs = execute(name, tmp_path)
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    pattern, holds = CLAIMS[name]
    assert holds(*re.findall(pattern, printed)), printed
    assert wait_until(lambda: not processes_of(tmp_path)), processes_of(tmp_path)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_no_outputs(name: str) -> None:
    text = (FOLDER / name).read_text()
    for cell in cells_of(FOLDER / name):
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
        assert cell["metadata"] == {}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert json.loads(text)["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    assert not _MACHINE.findall(text)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_uses_only_the_public_interface(name: str) -> None:
    sources = ("".join(cell["source"]) for cell in cells_of(FOLDER / name) if cell["cell_type"] == "code")
    found = re.findall(r"^\s*(?:from|import) (gigl_[\w.]+)", "\n".join(sources), re.M)
    assert found
    assert set(found) <= PUBLIC


def test_every_notebook_is_listed() -> None:
    listed = re.findall(r"^\| \[(\w+\.ipynb)\]\(\1\)", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed) == NOTEBOOKS
