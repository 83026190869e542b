"""Files of secrets that are replaced while they are in use."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, content: str | bytes) -> Path:
    """Replace a file at once, as programs that renew certificates do."""
    fresh = path.with_name(f".{path.name}")
    fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
    fresh.chmod(0o600)
    fresh.replace(path)
    return path


def mounted(folder: Path, version: str, **contents: str | bytes) -> None:
    """Swap the secrets of a folder as Kubernetes does: by one symbolic link to a folder of all files."""
    (folder / version).mkdir(parents=True)
    for name, content in contents.items():
        write(folder / version / name, content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))
    (folder / "..next").symlink_to(version)
    (folder / "..next").replace(folder / "..data")
