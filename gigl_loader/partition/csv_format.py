"""Format of CSV files: delimiter and quote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

__all__ = ["CsvFormat"]


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Characters that have a meaning in CSV files."""

    delimiter: str | None = None
    """Between values. ``None``: a comma, in ``.tsv`` files a tab."""
    quote: str = '"'
    """Around values that have delimiters or line ends in them, doubled within. Empty: no quoting."""

    def __post_init__(self) -> None:
        for name, value, least in (("delimiter", self.delimiter, 1), ("quote", self.quote, 0)):
            if value is None:
                continue
            if not least <= len(value) <= 1 or not value.isascii() or value in ("\n", "\r", "\0"):
                raise ValueError(f"the {name} of CSV files must be one ASCII character, got {value!r}")
        if self.quote and self.quote == self.delimiter:
            raise ValueError(f"the delimiter and the quote of CSV files are the same: {self.quote!r}")

    def delimiter_of(self, path: Path | RemotePath) -> str:
        """Return the delimiter of a file."""
        return self.delimiter or ("\t" if ".tsv" in path.suffixes else ",")
