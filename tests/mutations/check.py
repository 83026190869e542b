"""Put each seeded fault into a copy of the tree, and see which tests notice.

``python -m tests.mutations.check`` takes all of ``faults.toml``; names after it, those. A fault is caught
where a test of the files that it names fails. Needs an installed tree and Python 3.11.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("faults.toml")
_COPIED = ("gigl_loader", "servers", "clients", "tests", "benchmarks", "examples", "docs", "deploy")
_FILES = (
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "mkdocs.yml",
    "constraints.txt",
)
_TEST_S = 900
_NO_TESTS = (4, 5)  # Exit codes of pytest: wrong usage, and nothing collected.
_OWN_MODULES = """import sys

# An editable install finds its modules before any path does.
sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "ScikitBuildRedirectingFinder"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One seeded fault: what it breaks, the text that changes, and the tests that ought to fail."""

    name: str
    behaviour: str
    file: str
    find: str
    replace: str
    tests: list[str]
    slow: bool = False
    """Only a slow test sees it."""

    @property
    def is_native(self) -> bool:
        return self.file.startswith("gigl_loader/csrc/")


def read_faults() -> list[Fault]:
    with LIST.open("rb") as file:
        return [Fault(name=name, **fields) for name, fields in tomllib.load(file).items()]


class Copy:
    """A copy of the tree that tests import in place of the installed one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in _FILES:
            shutil.copy(ROOT / name, folder / name)
        (folder / "sitecustomize.py").write_text(_OWN_MODULES)
        self._build = folder / "build" / "mutations"

    def install(self) -> None:
        """Build the native module beside the Python files of the copy."""
        site = self.folder / "site"
        command = ["-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
        where = ["--target", str(site), str(self.folder), "-C", f"build-dir={self._build}"]
        subprocess.run([sys.executable, *command, *where], check=True)
        for module in (site / "gigl_loader" / "native").glob("_core*"):
            shutil.copy(module, self.folder / "gigl_loader" / "native")

    def test(self, fault: Fault) -> tuple[bool, str]:
        """Return whether the tests of a fault pass, and the last line that they said."""
        select = [] if fault.slow else ["-m", "not slow"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            *select,
            *fault.tests,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=_TEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"the tests did not end within {_TEST_S} s"
        if done.returncode in _NO_TESTS:
            raise SystemExit(f"{fault.name}: no test ran: {(done.stdout + done.stderr)[-500:]}")
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        last = (done.stdout.strip().splitlines() or [f"pytest ended with {done.returncode}"])[-1]
        return done.returncode == 0, failed[0] if failed else last

    def _environment(self) -> dict[str, str]:
        first = os.pathsep.join(str(self.folder / name) for name in ("", "servers", "clients"))
        return {**os.environ, "PYTHONPATH": first}


def check(fault: Fault, copy: Copy) -> tuple[bool, str]:
    """Return whether a fault is caught, and by what."""
    path = copy.folder / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.find, fault.replace))
    try:
        if fault.is_native:
            copy.install()
        passed, said = copy.test(fault)
    finally:
        path.write_text(text)
    return not passed, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to try; all by default")
    asked = parser.parse_args().names
    faults = [fault for fault in read_faults() if not asked or fault.name in asked]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder) / "tree")
        copy.install()
        native = sorted(faults, key=lambda each: not each.is_native)
        for number, fault in enumerate(native):
            if number and native[number - 1].is_native and not fault.is_native:
                copy.install()
            began = time.monotonic()
            caught, said = check(fault, copy)
            verdict = "caught" if caught else "MISSED"
            print(f"{verdict}  {fault.name}  ({time.monotonic() - began:.0f} s)  {said}", flush=True)
            missed += [] if caught else [fault.name]
    print(f"{len(faults) - len(missed)} of {len(faults)} caught; missed: {', '.join(missed) or 'none'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
