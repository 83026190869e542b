"""The command line in a process of its own, as a user starts it."""

from __future__ import annotations

import subprocess
import sys

COMMAND = [sys.executable, "-c", "from gigl_loader.cli import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """Read the log up to a line that has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the log ended without {words!r}")


def address_in(line: str) -> str:
    """Return the ``HOST:PORT`` in a line of the log."""
    return line.partition(" at ")[2].split(",")[0].split()[0]
