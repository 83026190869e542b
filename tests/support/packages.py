"""A list of packages, as apt keeps it, whose dependencies are easy to learn."""

from __future__ import annotations

from pathlib import Path


def write_package_list(folder: Path, *, count: int) -> Path:
    """Write ``archive_Packages`` into a new folder, and return the folder.

    Each package depends on five of its topic; there are six topics, which descriptions name.
    """
    stanzas = []
    for number in range(count):
        topic = "abcdef"[number % 6] * 3
        needed = ", ".join(f"tool{(number + 6 * step) % count}" for step in range(1, 6))
        stanzas.append(
            f"Package: tool{number}\nSection: {topic}\nDescription: {topic} tool\nDepends: {needed}\n"
        )
    folder.mkdir()
    (folder / "archive_Packages").write_text("\n".join(stanzas))
    return folder
