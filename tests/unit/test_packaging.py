"""What is installed: which libraries the native core needs, and what importing the package costs."""

from __future__ import annotations

import importlib.metadata
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import gigl_loader
from gigl_loader.native import _core

HEAVY = ("torch", "torch_geometric", "pyarrow", "grpc", "typer", "rich")


def needed_libraries(path: Path) -> list[str]:
    """Return the DT_NEEDED entries of a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    (section_table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_table + i * size) for i in range(count)]
    names: list[str] = []
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind == 6:  # SHT_DYNAMIC; link is its string table
            strings = sections[link][4]
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == 1:  # DT_NEEDED
                    begin = strings + value
                    names.append(data[begin : data.index(b"\0", begin)].decode())
    return names


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF")
def test_the_native_core_needs_no_torch() -> None:
    names = needed_libraries(Path(str(_core.__file__)))
    assert any(name.startswith("libstdc++") for name in names)
    allowed = ("libstdc++", "libm.", "libgcc_s", "libc.", "libpthread", "ld-linux", "libasan", "libubsan")
    foreign = [name for name in names if not name.startswith(allowed)]
    assert not foreign


@pytest.mark.parametrize("module", ["gigl_loader", "gigl_loader.native", "gigl_loader.graph.graph"])
def test_importing_stays_light(module: str) -> None:
    code = f"import sys, {module}; print(*(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


def test_the_version_is_written_once() -> None:
    assert importlib.metadata.version("gigl-loader") == gigl_loader.__version__


def test_extras_divide_what_servers_and_trainers_need() -> None:
    needs = importlib.metadata.requires("gigl-loader")
    assert needs is not None
    names = [(re.split(r"[^\w-]", need)[0], "extra ==" in need) for need in needs]
    base = {name for name, is_extra in names if not is_extra}
    assert "grpcio" in base
    assert not base & {"torch", "torch-geometric", "pyarrow"}
    assert {"torch", "torch-geometric", "pyarrow"} < {name for name, is_extra in names if is_extra}


@pytest.mark.parametrize(
    ("library", "extra"),
    [("torch", "train"), pytest.param("torch_geometric", "train", marks=pytest.mark.slow)],
)
def test_a_missing_library_is_told_with_its_extra(library: str, extra: str) -> None:
    said = f"{library} is not installed: pip install 'gigl-loader[{extra}]'"
    code = f"import sys; sys.modules['{library}'] = None; from gigl_loader import DistNeighborLoader"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {said}"


@pytest.mark.parametrize(
    ("words", "library", "extra"),
    [(["demo"], "torch", "train"), (["partition", "out", "--edges", "e.parquet"], "pyarrow", "tables")],
)
def test_commands_name_the_extra_that_is_missing(
    words: list[str], library: str, extra: str, tmp_path: Path
) -> None:
    (tmp_path / "e.parquet").write_bytes(b"")
    code = f"import sys; sys.modules['{library}'] = None; from gigl_loader.cli import main; main()"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    said = f"gigl-loader: {library} is not installed: pip install 'gigl-loader[{extra}]'\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("package", ["gigl_loader", "gigl_server", "gigl_client"])
def test_every_package_is_typed(package: str) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").exists()


def test_public_names_resolve() -> None:
    for name in gigl_loader.__all__:
        assert getattr(gigl_loader, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = gigl_loader.Nonsense
