"""Replay of a ledger: batches that it records are made again, from the graph of now, and compared."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.loaders.ledger import (
    FORMAT,
    PLACES,
    FrameDigests,
    digest_of_json,
    positions_of,
    request_digest,
    unpacked,
)
from gigl_loader.loaders.ledger_file import BEGIN, read_lines
from gigl_loader.loaders.single_batches import SingleBatches
from gigl_loader.native import draws
from gigl_loader.regular_files import open_regular
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.request import BatchRequest
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.sampling.source import SourceRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from typing_extensions import Self

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.sampling.plan import BatchPlan

_KIND = re.compile(rb'\{"line": \d{1,18}, "kind": "(run|input|batch|resumed)"')
_NUMBERS = re.compile(rb', "epoch": (\d{1,18}), "batch": (\d{1,18}),')
_RUN = {"format": int, "run": str, "loader": str, "settings": dict, "plan": dict, "num_entries": int}
_BATCH = {"request": str, "frame": str, "arrays": dict, "served_by": str}


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A batch that a ledger records."""

    line: int
    epoch: int
    batch: int
    """Number in its epoch, over all ranks."""
    fields: dict[str, Any]


@dataclass(slots=True)
class Recording:
    """A ledger whose seals were all checked."""

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    """The first line."""
    lines: int = 0
    head: str = BEGIN
    batches: int = 0
    epochs: set[int] = field(default_factory=set)
    resumed: int = 0
    """How often the run was resumed."""
    incomplete_bytes: int = 0
    """Of a last line that a crash cut off."""
    chosen: list[RecordedBatch] = field(default_factory=list)
    head_line: int | None = None
    """Line of the head that was looked for."""
    _input: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(
        cls,
        path: str | Path,
        chosen: Callable[[int, int], bool] = lambda epoch, batch: False,
        *,
        head: str | None = None,
    ) -> Self:
        """Read a ledger, and keep the batches that are ``chosen`` by epoch and number.

        ``FormatError`` names the first line that was changed, or that is missing or out of its place; also
        where ``head`` is given and no line has it, so that lines were replaced or cut off since.
        """
        path = Path(path)
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is no file")
        found = cls(path)
        with open(open_regular(path), "rb") as file:
            end = 0
            for line in read_lines(file, str(path)):
                kind = _KIND.match(line.body)
                if kind is None or (kind[1] == b"run") != (line.number == 1):
                    raise FormatError(f"{path}, line {line.number}: it is no line of a ledger")
                if kind[1] == b"batch":
                    found._take_batch(line.number, line.body[kind.end() :], line.record, chosen)
                else:
                    found._take(kind[1].decode(), line.record(str(path)))
                found.lines, found.head, end = line.number, line.chain, line.end
                if line.chain == head:
                    found.head_line = line.number
            found.incomplete_bytes = path.stat().st_size - end
        if not found.lines:
            raise FormatError(f"{path} is no ledger: it has no line")
        if head is not None and found.head_line is None:
            raise FormatError(
                f"{path}: no line has the head {head[:64]}: lines were replaced or cut off since"
            )
        return found

    def _take_batch(
        self,
        number: int,
        rest: bytes,
        record: Callable[[str], dict[str, Any]],
        chosen: Callable[[int, int], bool],
    ) -> None:
        numbers = _NUMBERS.match(rest)
        if numbers is None:
            raise FormatError(f"{self.path}, line {number}: it is no batch")
        epoch, batch = int(numbers[1]), int(numbers[2])
        self.batches += 1
        self.epochs.add(epoch)
        if chosen(epoch, batch):
            fields = record(str(self.path))
            self._check(fields, _BATCH, number)
            self.chosen.append(RecordedBatch(number, epoch, batch, fields))

    def _take(self, kind: str, record: dict[str, Any]) -> None:
        if kind == "run":
            self._check(record, _RUN, 1)
            self.run = record
            if record["format"] != FORMAT:
                raise FormatError(f"{self.path}: format {record['format']}; this version reads {FORMAT}")
            if digest_of_json(record["settings"]) != record["run"]:
                raise FormatError(f"{self.path}, line 1: its settings do not have the digest {record['run']}")
        elif kind == "input":
            self._check(record, {"column": str, "first": int, "values": str}, record["line"])
            self._input[record["column"]].append((record["first"], record["values"]))
        else:
            self.resumed += 1

    def _check(self, record: dict[str, Any], kinds: Mapping[str, type], number: int) -> None:
        for name, kind in kinds.items():
            if type(record.get(name)) is not kind:
                raise FormatError(f"{self.path}, line {number}: {name} is missing, or no {kind.__name__}")

    def to_json(self) -> dict[str, Any]:
        """Return what the ledger is, as plain values."""
        names = ("run", "graph", "loader", "rank", "world_size", "gigl_loader")
        return {
            "ledger": str(self.path),
            "lines": self.lines,
            "batches": self.batches,
            "epochs": sorted(self.epochs),
            "resumed": self.resumed,
            "head": self.head,
            "incomplete_bytes": self.incomplete_bytes,
            **{name: self.run.get(name) for name in names},
        }


class Replay:
    """Makes the batches of a ledger again. Close it, or use it as a context manager."""

    def __init__(
        self,
        recording: Recording,
        dataset: Dataset,
        *,
        allowed_samplers: Collection[str] = (),
        timeout_s: float = 300.0,
    ) -> None:
        """``allowed_samplers``: classes of users, ``package.module:Class``, that a plan may import.

        ``ValueError`` where the run cannot be replayed on this graph, or by this version.
        """
        self._recording, self._dataset = recording, dataset
        settings = recording.run["settings"]
        if settings.get("draws") != draws.DRAW_SPECIFICATION:
            raise ValueError(
                f"{recording.path} is of draw specification {settings.get('draws')!r}, and this version has "
                f"{draws.DRAW_SPECIFICATION}: replay it with gigl-loader {recording.run.get('gigl_loader')}"
            )
        try:
            self._plan = read_plan(
                json.dumps(recording.run["plan"]), dataset.schema, allowed_samplers=allowed_samplers
            )
        except ValueError as error:
            raise ValueError(f"the plan of {recording.path} does not fit this graph: {error}") from None
        self._read_input(shuffle=settings.get("shuffle") is True)
        self._digests = FrameDigests()
        name = f"replay of {recording.path.name}"
        request = SourceRequest.single(self._plan, name=name, timeout_s=timeout_s)
        self._batches = SingleBatches(dataset.open_source, request)

    def _read_input(self, *, shuffle: bool) -> None:
        found, path = self._recording, self._recording.path
        count = found.run["num_entries"]
        columns = {each.name: each for each in self._plan.inputs}
        if found._input.keys() - {PLACES} != (columns.keys() if count else set()):
            raise FormatError(f"{path}: its input is not that of its plan")
        values = {
            name: unpacked(found._input[name], column, count, f"{path}, column {name} of the input")
            for name, column in columns.items()
        }
        self._places: Int64Array | None = None
        if PLACES in found._input:
            self._places = unpacked(found._input[PLACES], None, count, f"{path}, places of the input")
        self._schedule = Schedule(
            values, batch_size=1, shuffle=shuffle, drop_last=False, run_seed=self._plan.run_seed
        )

    def compare(self, recorded: RecordedBatch) -> tuple[str, ...]:
        """Make a batch again. Return the names of the arrays whose digests differ from those of its line.

        ``request`` is among them where the ledger contradicts itself.

        Raises what loaders raise: ``FormatError`` names a damaged file of the graph, ``StorageUnavailable`` a
        server that does not answer.
        """
        fields, run = recorded.fields, self._recording.run["run"]
        if digest_of_json(fields["arrays"]) != fields["frame"]:
            raise FormatError(f"{self._line(recorded)}: its arrays do not have the digest of the frame")
        request, _ = self.request(recorded)
        digest = request_digest(run, epoch=recorded.epoch, batch=recorded.batch, places=request.index)
        differs = [] if digest == fields["request"] else ["request"]
        here, there = self._digests(self._batches.receive(request)), fields["arrays"]
        differs += [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
        return tuple(differs)

    @property
    def plan(self) -> BatchPlan:
        """Which subgraph belongs to a batch of the run."""
        return self._plan

    @property
    def num_entries(self) -> int:
        """Number of entries of the input."""
        return self._schedule.num_entries

    def request(self, recorded: RecordedBatch) -> tuple[BatchRequest, Int64Array]:
        """Return the request of a batch, and the entries of the input that it has, int64 [B]."""
        entries = self._entries(recorded)
        places = entries if self._places is None else self._places[entries]
        recorded_inputs = {name: column[entries] for name, column in self._schedule.inputs.items()}
        inputs: dict[str, Array] = {
            each.name: positions_of(self._dataset, each, recorded_inputs) for each in self._plan.inputs
        }
        return BatchRequest(recorded.epoch, 0, places, inputs, recorded.batch), entries

    def _entries(self, recorded: RecordedBatch) -> Int64Array:
        """Return the entries of the input of a batch, int64 [B]."""
        count = self._schedule.num_entries
        places, span = recorded.fields.get("places"), recorded.fields.get("entries", [])
        if places is None:
            if not _are_numbers(span, count + 1) or len(span) != 2 or span[0] > span[1]:
                raise FormatError(f"{self._line(recorded)}: entries must be a part of {count}")
            return self._schedule.entries(recorded.epoch, range(*span))
        if not _are_numbers(places, 2**63):
            raise FormatError(f"{self._line(recorded)}: places must be a list of numbers")
        wanted = np.array(places, np.int64)
        entries = wanted if self._places is None else np.searchsorted(self._places, wanted)
        if (entries >= count).any() or (self._places is not None and (self._places[entries] != wanted).any()):
            raise FormatError(f"{self._line(recorded)}: places that the input does not have")
        return entries

    def _line(self, recorded: RecordedBatch) -> str:
        return f"{self._recording.path}, line {recorded.line}"

    def close(self) -> None:
        """Close what makes the batches. Closing twice is fine."""
        self._batches.close()
        self._digests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _are_numbers(value: Any, end: int) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < end for each in value)


_PARTS = {
    "n_id": "nodes",
    "tree": "trees of nodes",
    "rows": "neighbours of edges",
    "colptr": "targets of edges",
    "e_id": "ids of edges",
}


def described(names: Sequence[str]) -> str:
    """Return as text where a batch differs: ``column x of paper, ids of edges of a,cites,b``."""
    return ", ".join(map(_described, names))


def _described(name: str) -> str:
    what, *parts = name.split("/")
    if len(parts) != 2 or what not in ("node", "edge"):
        return {"counts": "numbers of nodes and edges", "request": "the request"}.get(name, name)
    kind = ",".join(map(unquote, parts[0].split("+")))
    return f"{_PARTS.get(parts[1], f'column {unquote(parts[1])}')} of {kind}"
