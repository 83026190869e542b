"""Programs as a new user would write and run them: every one ends well and leaves nothing."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT_S = 40.0
"""Far above what it takes on a busy machine, far below the timeouts of loaders."""
SEEDS = int(homogeneous().train_mask.sum())

HEAD = """
import os
from gigl_loader import DistDataset, DistNeighborLoader

dataset = DistDataset.open(os.environ["GRAPH"])

def make(**options):
    options = {"batch_size": 8, "num_workers": 2, "shuffle": True, **options}
    loader = DistNeighborLoader(dataset, [3, 2], "train", **options)
    print("pids", *[worker["pid"] for worker in loader.stats()["workers"]], flush=True)
    return loader
"""

EPOCH = """
loader = make()
seen = 0
for batch in loader:
    seen += batch.batch_size

print("seen", seen, flush=True)
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return path


@pytest.fixture
def run(graph: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run an interpreter in an empty directory until it ends."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**_environment(graph), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script and return its path."""

    def script(code: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(code))
        return str(path)

    return script


def _environment(graph: Path) -> dict[str, str]:
    return {**os.environ, "GRAPH": str(graph), "PYTHONPATH": str(Path(__file__).parents[2])}


def _check(done: subprocess.CompletedProcess[str], *, seen: int = SEEDS) -> None:
    assert done.returncode == 0, done.stderr
    assert f"seen {seen}" in done.stdout
    _check_gone(done.stdout)


def _check_gone(output: str) -> None:
    pids = _pids(output)
    assert pids, output
    deadline = time.monotonic() + 3
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived their trainer"
        time.sleep(0.01)


def _pids(output: str) -> list[int]:
    return [int(pid) for line in re.findall(r"pids ([\d ]+)", output) for pid in line.split()]


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_plain_script_without_a_guard(run: Any, script: Any) -> None:
    done = run(script(HEAD + EPOCH))
    _check(done)
    assert done.stderr == ""


@pytest.mark.slow
def test_a_script_with_a_guard(run: Any, script: Any) -> None:
    body = textwrap.indent(EPOCH + "loader.shutdown()\n", "    ")
    done = run(script(f"{HEAD}\ndef main():\n{body}\nif __name__ == '__main__':\n    main()\n"))
    _check(done)
    assert done.stderr == ""


@pytest.mark.slow
def test_a_command_line(run: Any) -> None:
    _check(run("-c", HEAD + EPOCH))


@pytest.mark.slow
def test_a_script_from_standard_input(run: Any) -> None:
    _check(run("-", input=HEAD + EPOCH))


@pytest.mark.slow
def test_a_script_from_standard_input_has_no_file_for_a_fork_server(run: Any) -> None:
    done = run("-", input=HEAD + EPOCH.replace("make()", "make(multiprocessing_context='forkserver')"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert re.search(
        r"ValueError: .*'forkserver' .*<stdin> is no file: .* use 'spawn'$", done.stderr.rstrip()
    )


@pytest.mark.slow
def test_an_interactive_interpreter(run: Any) -> None:
    done = run("-i", "-q", input=HEAD + EPOCH + "\nlen(loader)\n")
    _check(done)
    assert "Error" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_other_ways_to_start_workers(run: Any, script: Any, start: str) -> None:
    body = textwrap.indent(EPOCH.replace("make()", f"make(multiprocessing_context={start!r})"), "    ")
    _check(run(script(f"{HEAD}\nif __name__ == '__main__':\n{body}\n    loader.shutdown()\n")))


@pytest.mark.slow
def test_a_directory_full_of_traps(run: Any, tmp_path: Path) -> None:
    """Modules in the working directory that a script does not see are not seen by its workers either."""
    for name in ("numpy", "json", "socket", "gigl_loader"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a trap')\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text(HEAD + EPOCH)
    _check(run("elsewhere/train.py"))


@pytest.mark.slow
def test_two_loaders_at_once(run: Any, script: Any) -> None:
    code = """
    first, second = make(), make()
    seen = 0
    for a, b in zip(first, second):
        seen += a.batch_size + b.batch_size
    print("seen", seen)
    """
    done = run(script(HEAD + textwrap.dedent(code)))
    _check(done, seen=2 * SEEDS)
    assert len(set(_pids(done.stdout))) == 4


@pytest.mark.slow
def test_a_break_in_mid_epoch_and_the_end_of_the_script(run: Any, script: Any) -> None:
    code = """
    loader = make()
    for batch in loader:
        break
    print("seen", batch.batch_size)
    """
    done = run(script(HEAD + textwrap.dedent(code)))
    _check(done, seen=8)
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"])
def test_leaving_in_mid_epoch(run: Any, script: Any, end: str) -> None:
    body = f"for batch in make():\n    print('seen', 8, flush=True)\n    {end}\n"
    _check(run(script(f"import sys\n{HEAD}\n{body}")), seen=8)


@pytest.mark.slow
def test_an_error_of_the_user_in_mid_epoch(run: Any, script: Any) -> None:
    done = run(script(f"{HEAD}\nfor batch in make():\n    1 / 0\n"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    _check_gone(done.stdout)


@pytest.mark.slow
def test_batches_outlive_their_loader(run: Any, script: Any) -> None:
    code = """
    loader = make()
    batches = list(loader)
    loader.shutdown()
    del loader
    print("seen", sum(int((batch.x.sum(1) > -1e9).sum() > 0) * batch.batch_size for batch in batches))
    """
    _check(run(script(HEAD + textwrap.dedent(code))))


@pytest.mark.slow
def test_a_bad_argument_is_one_traceback_that_ends_with_the_rule(run: Any, script: Any) -> None:
    done = run(script(HEAD.replace("[3, 2]", "[3, -2]") + EPOCH))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("ValueError: num_neighbors at hop 1 must be at least -1, got -2")


# Programs that are stopped from outside

ENDLESS = """
loader = make()
while True:
    for batch in loader:
        print("seen", batch.batch_size, flush=True)
"""


@contextmanager
def _running(code: str, graph: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program. It is killed at the latest when the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=_environment(graph),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _first_lines(process: subprocess.Popen[str]) -> str:
    """Wait for the first batch; return the line with the workers."""
    assert process.stdout is not None
    pids, seen = process.stdout.readline(), process.stdout.readline()
    assert seen.startswith("seen")
    return pids


BUSY = {"loading": "pass", "asleep": "time.sleep(60)", "computing": "while True: pass"}


@pytest.mark.parametrize(
    "busy", ["loading", *(pytest.param(busy, marks=pytest.mark.slow) for busy in ("asleep", "computing"))]
)
def test_control_c_in_mid_epoch_is_quick_and_leaves_nothing(graph: Path, busy: str) -> None:
    with _running(f"import time\n{HEAD}{ENDLESS}        {BUSY[busy]}\n", graph) as process:
        pids = _first_lines(process)
        # A terminal sends it to the whole foreground group.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PROMPT_S)
    assert process.returncode in (1, -signal.SIGINT, 130)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    _check_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_that_is_killed_leaves_nothing(graph: Path, number: signal.Signals) -> None:
    with _running(HEAD + ENDLESS, graph) as process:
        pids = _first_lines(process)
        process.send_signal(number)
        process.communicate(timeout=PROMPT_S)
    assert process.returncode == -number
    _check_gone(pids)


class _Terminal:
    """A Python prompt on a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._leader, follower = pty.openpty()
        # `setsid -c` makes the terminal the controlling one, so that Control-C reaches the prompt.
        self.process = subprocess.Popen(
            ["setsid", "-c", "-w", sys.executable, "-q"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**environment, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"},
        )
        os.close(follower)
        self.output = ""

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def expect(self, pattern: str, seconds: float = 30) -> str:
        """Read until ``pattern`` appears, and forget what was read up to it."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.output)):
            assert time.monotonic() < deadline, self.output
            self.output += os.read(self._leader, 65536).decode()
        seen, self.output = self.output[: match.end()], self.output[match.end() :]
        return seen

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        # The prompt ends when its terminal goes.
        os.close(self._leader)
        self.process.wait(20)


@pytest.mark.slow
def test_control_c_at_a_prompt_ends_the_epoch_and_the_loader_goes_on(graph: Path) -> None:
    with _Terminal(_environment(graph)) as terminal:
        terminal.type(HEAD.strip() + "\n\n")
        terminal.type("loader = make()\n")
        pids = terminal.expect(r"pids \d+ \d+\r")
        terminal.type("import itertools\n")
        terminal.type("for i in itertools.count():\n  for batch in loader: print('epoch', i)\n\n")
        terminal.expect("epoch 3\r")
        terminal.type("\x03")
        terminal.expect("KeyboardInterrupt")
        terminal.type("print('seen', sum(batch.batch_size for batch in loader))\n")
        terminal.expect(f"seen {SEEDS}\r")
        terminal.type("exit()\n")
        assert terminal.process.wait(20) == 0
    _check_gone(pids)
