"""Earlier releases, built from the history of this repository, and interpreters that run them.

An interpreter takes the release before the libraries of this environment: only a wheel is built.
A copy without history, or a shallow one, has no releases.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_BUILDS = _ROOT / "build/releases"

COMMITS = {"0.1.0": "e6bd5a47ea664ebee7938db69b728e4499d75238"}
"""The commit of each release, as its tag says."""

_BUILD_S = 600.0


@cache
def interpreter(release: str) -> Path:
    """Return a Python that imports a release. Built once, in 1 to 2 minutes; skips without its history."""
    home = _BUILDS / release
    python = home / "venv/bin/python"
    if python.exists():
        return python
    commit = COMMITS[release]
    found = subprocess.run(["git", "cat-file", "-e", commit], cwd=_ROOT, capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"the history of this copy lacks release {release}")
    home.mkdir(parents=True, exist_ok=True)
    packages = home / "packages"
    with zipfile.ZipFile(build_wheel(_sources(commit, home), home)) as wheel:
        wheel.extractall(packages)
    environment = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    [site] = environment.glob("lib/python*/site-packages")
    # .pth files of such directories are not read: that of this checkout's install stays out.
    (site / "release.pth").write_text(f"{packages}\n{sysconfig.get_path('purelib')}\n")
    return python


def _sources(commit: str, home: Path) -> Path:
    """Unpack the files of a commit, and return their directory."""
    sources = home / "sources"
    sources.mkdir(exist_ok=True)
    archive = home / "sources.tar"
    subprocess.run(["git", "archive", "-o", str(archive), commit], cwd=_ROOT, check=True, timeout=60)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(sources)], check=True, timeout=60)
    return sources


def build_wheel(sources: Path, out: Path) -> Path:
    """Build the wheel of a source tree with pip, and return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "-w", str(out), str(sources)], check=True, timeout=_BUILD_S)
    [wheel] = out.glob("gigl_loader-*.whl")
    return wheel
