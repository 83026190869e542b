"""The command line as a user starts it: in a process of its own, or in that of the test."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from unittest.mock import patch

from gigl_loader.cli import main

COMMAND = [sys.executable, "-c", "from gigl_loader.cli import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, in a process of its own. For tests whose subject is the process."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end in this process, which has imported already what costs a new one half a second."""
    out, err = StringIO(), StringIO()
    with patch.object(sys, "argv", ["gigl-loader", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(arguments, int(code or 0), out.getvalue(), err.getvalue())


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
