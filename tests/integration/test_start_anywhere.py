"""Workers start from any kind of program, and see the modules that their trainer sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# No `if __name__ == "__main__"` anywhere.
PROGRAM = """
from tests.support.sources import NUM_BATCHES, SourceKind, drain
source = SourceKind(2).open()
source.start_epoch(0)
batches = drain(source)
print(len(batches), "batches")
"""


def run(*arguments: str, cwd: Path, stdin: str = "", **environment: str) -> str:
    """Run Python somewhere else than in the project. Return what it printed; it must print no error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_script_without_a_guard(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert run("train.py", cwd=tmp_path) == "12 batches\n"


@pytest.mark.slow
def test_a_command_line(tmp_path: Path) -> None:
    assert run("-c", PROGRAM, cwd=tmp_path) == "12 batches\n"


def test_an_interactive_interpreter(tmp_path: Path) -> None:
    assert "12 batches" in run("-i", "-q", cwd=tmp_path, stdin=PROGRAM)


def test_a_module_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(PROGRAM)
    assert run("-m", "project.train", cwd=tmp_path) == "12 batches\n"


def test_warnings_as_errors_and_development_mode(tmp_path: Path) -> None:
    assert run("-X", "dev", "-W", "error", "-c", PROGRAM, cwd=tmp_path) == "12 batches\n"


def test_the_working_directory_hides_no_module(tmp_path: Path) -> None:
    """A script in one directory, run in another that has modules by the same names as ours."""
    scripts, elsewhere = tmp_path / "scripts", tmp_path / "elsewhere"
    scripts.mkdir()
    (scripts / "train.py").write_text(PROGRAM)
    for decoy in ("gigl_loader", "json"):
        (elsewhere / decoy).mkdir(parents=True)
        (elsewhere / decoy / "__init__.py").write_text("raise ImportError('a decoy')")
    assert run(str(scripts / "train.py"), cwd=elsewhere) == "12 batches\n"


@pytest.mark.slow
def test_a_path_that_only_the_trainer_knows(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"
    assert run("-c", program, cwd=tmp_path, PYTHONPATH="") == "12 batches\n"


@pytest.mark.parametrize("stream", ["0", *(pytest.param(each, marks=pytest.mark.slow) for each in "12")])
def test_a_trainer_with_a_closed_standard_stream(tmp_path: Path, stream: str) -> None:
    """As daemons have. Descriptors 0 to 2 then become files of ours, which must not confuse workers."""
    program = f"import os; os.close({stream})\n{PROGRAM}open('done', 'w').close()"
    command = f"try:\n {program.replace(chr(10), chr(10) + ' ')}\nexcept OSError: pass"
    # Unbuffered, so that printing fails where it is done and not when the interpreter ends.
    run("-c", command, cwd=tmp_path, PYTHONUNBUFFERED="1")
    if stream != "1":
        assert (tmp_path / "done").exists()
