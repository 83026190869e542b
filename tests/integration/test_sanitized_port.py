"""Native code as programs of their own, under sanitizers: hostile bytes, many threads, and faults."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SECONDS = 5
"""Of hostile bytes and of traffic each. ``make fuzz-port`` and ``make sanitize`` take a minute by default."""
_COMPILER = os.environ.get("CXX", "g++")


def _has_library(compiler: str, name: str) -> bool:
    if shutil.which(compiler) is None or shutil.which("make") is None:
        return False
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).is_absolute()


def _make(*words: str) -> str:
    """Return what ``make`` prints. Fails with the end of it."""
    done = subprocess.run(
        ["make", "-s", "-j2", *words], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


_NEEDS_OPENSSL = pytest.mark.skipif(
    not _has_library(_COMPILER, "libssl.so.3"), reason="needs make, a C++ compiler and OpenSSL 3"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@_NEEDS_OPENSSL
@pytest.mark.skipif(not _has_library(_COMPILER, "libtsan.so"), reason="needs libtsan, of gcc")
def test_traffic_of_many_threads_has_no_races() -> None:
    assert " 0 wrong" in _make("sanitize", "SANITIZER=thread", f"TRAFFIC_SECONDS={_SECONDS}")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not _has_library(_COMPILER, "libtsan.so"), reason="needs make and libtsan, of gcc")
def test_ranks_that_copy_rows_from_each_other_have_no_races() -> None:
    assert " 0 wrong" in _make("sanitize-slots", f"TRAFFIC_SECONDS={_SECONDS}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@_NEEDS_OPENSSL
@pytest.mark.skipif(not _has_library(_COMPILER, "libasan.so"), reason="needs libasan, of gcc")
@pytest.mark.parametrize("target", ["fuzz_data_heads", "fuzz_data_tls"])
def test_hostile_bytes_at_the_port_and_its_client(target: str, tmp_path: Path) -> None:
    program = f"build/address/{target}"
    _make(program)
    done = subprocess.run(
        [_ROOT / program, str(_SECONDS)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert int(done.stdout.split()[0]) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@_NEEDS_OPENSSL
@pytest.mark.skipif(not _has_library(_COMPILER, "libasan.so"), reason="needs libasan, of gcc")
def test_nobody_waits_in_vain_without_memory_or_names() -> None:
    program = "build/address/data_port_faults"
    _make(program)
    done = subprocess.run([_ROOT / program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert int(done.stdout.split()[0]) > 0
