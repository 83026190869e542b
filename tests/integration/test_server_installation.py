"""``pip install gigl-loader[server]``: without torch, PyG and pyarrow, and with the same batches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from tests.support.other_builds import BuildServers
from tests.support.releases import build_wheel
from tests.support.training import FANOUT, OPTIONS, digest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
MAX_BYTES = 150_000_000
TRAINERS_NEED = ("torch", "torch_geometric", "pyarrow")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which the wheel of this tree is installed for servers."""
    folder = tmp_path_factory.mktemp("server")
    without = shutil.ignore_patterns(".git", ".venv*", "build", "dist", ".*_cache", "__pycache__")
    wheel = build_wheel(Path(shutil.copytree(ROOT, folder / "sources", ignore=without)), folder)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    install = [str(environment / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, f"{wheel}[server]"], check=True, timeout=600)
    return environment


def test_it_has_no_torch_and_is_small(environment: Path) -> None:
    [packages] = environment.glob("lib/python*/site-packages")
    assert not [name for name in TRAINERS_NEED if (packages / name).exists()]
    came_with = tuple(packages / name for name in ("pip", "setuptools", "pkg_resources"))
    files = (path for path in environment.rglob("*") if path.is_file())
    size = sum(path.lstat().st_size for path in files if not any(map(path.is_relative_to, came_with)))
    assert size < MAX_BYTES, f"{size / 1e6:.0f} MB"


@pytest.mark.usefixtures("no_leftovers")
def test_it_serves_the_batches_of_every_other_environment(
    environment: Path, graph: Path, expected: list[int]
) -> None:
    with BuildServers(graph, 2) as servers:
        for server in (0, 1):
            servers.start_release(server, environment / "bin/python")
        for server in (0, 1):
            servers.wait_ready(server)
        with (
            RemoteDistDataset.connect(servers.addresses) as dataset,
            DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS) as loader,
        ):
            assert [digest(batch) for batch in loader] == expected


@pytest.fixture
def run(environment: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin/gigl-loader"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    return run


def test_commands_say_what_is_not_installed(
    run: Callable[..., subprocess.CompletedProcess[str]], graph: Path
) -> None:
    demo = run("demo")
    assert demo.returncode == 1
    assert demo.stderr == "gigl-loader: torch is not installed: pip install 'gigl-loader[train]'\n"
    assert run("inspect", str(graph)).returncode == 0
    doctor = run("doctor", "--json")
    assert doctor.returncode == 0
    notes = {each["subject"] for each in json.loads(doctor.stdout) if each["verdict"] == "note"}
    assert notes >= {"torch", "loader"}
