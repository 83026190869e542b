"""The command line: what it imports, how it reports, how it exits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import gigl_loader
from gigl_loader.cli import checkup
from gigl_loader.cli.app import build_app
from gigl_loader.cli.checkup import Verdict, examine
from gigl_loader.cli.errors import DEBUG_VARIABLE, exit_code, one_line, reported
from gigl_loader.cli.options import grouped
from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.options import size_text
from gigl_loader.resources import FreeMemory
from tests.support.command_line import run


def test_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(build_app(), ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"gigl-loader {gigl_loader.__version__}"


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, gigl_loader.cli.app as cli\n"
        "from typer.testing import CliRunner\n"
        "result = CliRunner().invoke(cli.build_app(), ['--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "names = 'partition import-glt inspect serve local-cluster top demo bench doctor'.split()\n"
        "for name in names: assert name in result.output\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'grpc', 'yaml', 'torch_geometric'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "command",
    [
        "partition",
        "import-glt",
        "inspect",
        "serve",
        "adopt",
        "local-cluster",
        "top",
        "demo",
        "bench",
        "doctor",
    ],
)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(build_app(), [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a"), 2),
        (TypeError("a"), 2),
        (FileNotFoundError("a"), 2),
        (FileExistsError("a"), 2),
        (FormatError("a"), 2),
        (SamplingError("a"), 1),
        (TimeoutError("a"), 1),
        (ConnectionError("a"), 1),
        (ImportError("a"), 1),
        (KeyError("a"), 1),
    ],
)
def test_exit_codes_tell_mistakes_from_failures(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_is_one_line() -> None:
    assert one_line(ValueError("first\n  second")) == "first second"


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Path("/no/such/file").read_bytes()
    assert one_line(caught.value) == "no such file or directory: /no/such/file"


def test_an_unexpected_error_is_named_by_its_type() -> None:
    assert one_line(KeyError("x")) == "KeyError: 'x' (--debug shows where)"


def test_errors_are_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)

    @reported
    def command() -> None:
        raise ValueError("the number must be even, got 3")

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err == "gigl-loader: the number must be even, got 3\n"


def test_debug_lets_errors_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")

    @reported
    def command() -> None:
        raise ValueError("whole")

    with pytest.raises(ValueError, match="whole"):
        command()


def test_an_interrupt_exits_quietly_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    @reported
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == 130
    assert capsys.readouterr().err == ""


def test_an_interrupt_while_importing_ends_the_process_at_once() -> None:
    code = (
        "import os, signal\n"
        "from gigl_loader.cli.errors import importing\n"
        "with importing():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT)\n"
        "    except BaseException: print('swallowed')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_unknown_option_is_the_users_mistake() -> None:
    assert CliRunner().invoke(build_app(), ["demo", "--nonsense"]).exit_code == 2


def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    result = run("demo", "--mode", "embedded", "--num-workers", "2")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("gigl-loader: --mode embedded")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["frobnicate"], "gigl-loader: No such command 'frobnicate'. (gigl-loader --help)"),
        (["demo", "--epochs", "0"], "gigl-loader: Invalid value for '--epochs': "),
        (["inspect"], "gigl-loader: Missing argument "),
        (["inspect", "--nonsense"], "gigl-loader: No such option: --nonsense"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line_too(arguments: list[str], told: str) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(told)
    assert result.stderr.count("\n") == 1


def test_without_arguments_it_shows_its_help() -> None:
    result = run()
    assert result.returncode == 0
    assert "Commands" in result.stdout


def test_debug_shows_the_traceback() -> None:
    result = run("--debug", "demo", "--mode", "embedded", "--num-workers", "2")
    assert "Traceback" in result.stderr
    assert "ValueError: --mode embedded" in result.stderr


@pytest.mark.usefixtures("no_leftovers")
def test_the_doctor_finds_a_loader_that_works() -> None:
    findings = {finding.subject: finding for finding in examine()}
    assert findings["loader"].verdict == "ok", findings["loader"]
    assert findings["native core"].verdict == "ok", findings["native core"]


@pytest.mark.parametrize(("free", "verdict"), [(2 << 30, "ok"), (500 << 20, "note")])
def test_the_doctor_tells_the_memory_limit(monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    monkeypatch.setattr(checkup, "free_memory", lambda: FreeMemory(free, "memory.max of /a"))
    found = checkup._memory()
    assert (found.subject, found.verdict) == ("memory", verdict)
    assert f"{size_text(free)} may still be taken: memory.max of /a" in found.detail


def test_the_doctor_fails_where_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Verdict("memfd", "failed", "OSError: no"), Verdict("torch", "ok", "2")]
    monkeypatch.setattr("gigl_loader.cli.checkup.examine", lambda: found)
    result = CliRunner().invoke(build_app(), ["doctor", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output) == [finding.to_json() for finding in found]
    assert CliRunner().invoke(build_app(), ["doctor"]).exit_code == 1


def test_a_directory_in_the_place_of_a_file_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as raised:
        tmp_path.read_bytes()
    assert one_line(raised.value) == f"a directory, not a file: {tmp_path}"
    assert exit_code(raised.value) == 2


@dataclass(frozen=True)
class Size:
    """A group of options."""

    width: Annotated[int, typer.Option("--width", min=1)] = 3
    tags: Annotated[list[str], typer.Option("--tag")] = field(default_factory=list)


def test_each_field_of_a_group_is_an_option() -> None:
    seen: list[tuple[str, Size, bool]] = []

    def measure(name: str, *, size: Size, dry: Annotated[bool, typer.Option("--dry")] = False) -> None:
        seen.append((name, size, dry))

    app = typer.Typer()
    app.command()(reported(grouped(measure)))
    for arguments in ([], ["--width", "5", "--tag", "a", "--tag", "b", "--dry"], []):
        assert CliRunner().invoke(app, ["desk", *arguments]).exit_code == 0
    assert seen == [("desk", Size(), False), ("desk", Size(5, ["a", "b"]), True), ("desk", Size(), False)]
    assert CliRunner().invoke(app, ["desk", "--width", "0"]).exit_code == 2
