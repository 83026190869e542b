"""Objects that the code under test makes for itself, caught at their construction.

A test reads their public state this way, whatever the attribute that holds them is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from gigl_loader import DistDataset

if TYPE_CHECKING:
    import pytest

    from gigl_loader.sampling.source import BatchSource, SourceRequest

Made = TypeVar("Made")


def record_made(monkeypatch: pytest.MonkeyPatch, kind: type[Made]) -> list[Made]:
    """Return a list to which every instance of ``kind`` is added that is made from now on, oldest first.

    Recording ends when ``monkeypatch`` is undone.
    """
    found: list[Made] = []
    init: Any = kind.__init__

    def recorded(made: Made, *arguments: Any, **options: Any) -> None:
        init(made, *arguments, **options)
        found.append(made)

    monkeypatch.setattr(kind, "__init__", recorded)
    return found


def record_sources(monkeypatch: pytest.MonkeyPatch) -> list[BatchSource]:
    """Return a list to which every source is added that a ``DistDataset`` opens from now on."""
    found: list[BatchSource] = []
    open_source = DistDataset.open_source

    def recorded(dataset: DistDataset, request: SourceRequest) -> BatchSource:
        found.append(open_source(dataset, request))
        return found[-1]

    monkeypatch.setattr(DistDataset, "open_source", recorded)
    return found
