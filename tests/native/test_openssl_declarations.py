"""Declarations of OpenSSL in ``csrc/openssl.h``, compared with its headers by the compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = os.environ.get("CXX", "g++").split()
PROGRAM = Path(__file__).parent / "openssl_declarations.cc"
SOURCES = Path(__file__).parents[2] / "gigl_loader" / "csrc"


def compiled(program: str, declarations: Path = SOURCES) -> subprocess.CompletedProcess[str]:
    """Check a program that includes the ``openssl.h`` of a folder."""
    return subprocess.run(
        [*COMPILER, "-std=c++20", "-fsyntax-only", "-I", str(declarations), "-x", "c++", "-"],
        input=program,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def _headers() -> None:
    if shutil.which(COMPILER[0]) is None or not SOURCES.exists():
        pytest.skip("needs a C++ compiler and the sources")
    version = "#include <openssl/opensslv.h>\nstatic_assert(OPENSSL_VERSION_MAJOR == 3);"
    if compiled(version).returncode != 0:
        pytest.skip("needs the headers of OpenSSL 3 (libssl-dev)")


def test_declarations_are_those_of_the_headers() -> None:
    done = compiled(PROGRAM.read_text())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("ours", "wrong", "told"),
    [
        ("X(int, SSL_read, (ssl_st*, void*, int))", "X(int, SSL_read, (ssl_st*, void*, long))", "SSL_read"),
        ("X(kErrorClosed, 6,", "X(kErrorClosed, 7,", "SSL_ERROR_ZERO_RETURN"),
    ],
)
def test_a_wrong_declaration_is_found(tmp_path: Path, ours: str, wrong: str, told: str) -> None:
    header = (SOURCES / "openssl.h").read_text()
    assert ours in header
    (tmp_path / "openssl.h").write_text(header.replace(ours, wrong))
    done = compiled(PROGRAM.read_text(), tmp_path)
    assert done.returncode != 0
    assert told in done.stderr
