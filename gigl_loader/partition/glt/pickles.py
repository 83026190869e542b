"""Reader of pickles that runs nothing.

A pickle is a program for a stack machine. Python's own machine imports what the program names and calls it.
This one knows only the instructions that numbers, texts, containers and tensors of PyTorch need. A name stays
a ``Name``, a call stays a ``Call``, and long bytes stay where they are in the file, as a ``Span``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gigl_loader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

_MAX_TEXT = 1 << 16


class Span(NamedTuple):
    """Bytes of a file."""

    offset: int
    size: int


class Name(NamedTuple):
    """A function or class that the pickle names. It is never imported."""

    module: str
    name: str


class Call(NamedTuple):
    """A call that the pickle asks for. It is never made."""

    function: Any
    arguments: Any


class Persistent(NamedTuple):
    """An object that the pickle leaves to its reader to find."""

    key: Any


class Section:
    """A part of a file, read from its start. ``FormatError`` where it ends too early."""

    def __init__(self, path: Path, file: BinaryIO, span: Span) -> None:
        self.path = path
        self._file = file
        self._end = span.offset + span.size
        self.seek(span.offset)

    @property
    def at_end(self) -> bool:
        return self.position >= self._end

    def seek(self, position: int) -> None:
        self.position = position
        self._file.seek(position)

    def read(self, size: int) -> bytes:
        data = self._file.read(size) if self.position + size <= self._end else b""
        if len(data) != size:
            raise FormatError(f"{self.path}: ends early, at byte {self.position}")
        self.position += size
        return data

    def skip(self, size: int) -> Span:
        """Pass over bytes, however many. Return where they are."""
        span = Span(self.position, size)
        if not 0 <= size <= self._end - self.position:
            raise FormatError(f"{self.path}: ends early: {size} bytes at byte {self.position}")
        self.seek(self.position + size)
        return span

    def part(self, span: Span) -> Section:
        """Return a part of this section, which was skipped before. The two share the file's position."""
        return Section(self.path, self._file, span)


def read_pickle(section: Section, *, max_steps: int) -> Any:
    """Return what the next pickle holds, and move behind it.

    Integers, texts, booleans, ``None``, tuples, lists and dicts with texts for keys are themselves; bytes
    are a ``Span``. ``FormatError`` for any other instruction, and after ``max_steps`` of them.
    """
    machine = _Machine(section)
    try:
        for _ in range(max_steps):
            code = section.read(1)
            if code == b".":
                return machine.pop()
            _step(machine, code)
    except (IndexError, KeyError, UnicodeDecodeError, struct.error):
        raise FormatError(f"{section.path}: damaged: no pickle ends near byte {section.position}") from None
    raise FormatError(f"{section.path}: a pickle of more than {max_steps} instructions")


class _Machine:
    """The stack, the memo and the marks of one pickle."""

    def __init__(self, section: Section) -> None:
        self.section = section
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._marks: list[int] = []

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if self._marks and self._marks[-1] == len(self.stack):
            raise IndexError("a mark is not a value")
        return self.stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self.stack))

    def pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def ignore(self, size: int) -> None:
        self.section.read(size)

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.section.read(struct.calcsize(form)))
        return int(value)

    def text(self, size: int) -> str:
        if size > _MAX_TEXT:
            raise FormatError(f"{self.section.path}: a text of {size} bytes, more than {_MAX_TEXT}")
        return self.section.read(size).decode()

    def line(self) -> str:
        found = bytearray()
        while (byte := self.section.read(1)) != b"\n":
            found += byte
            if len(found) > _MAX_TEXT:
                raise FormatError(f"{self.section.path}: a name of more than {_MAX_TEXT} bytes")
        return found.decode()

    def tuple_of(self, size: int) -> None:
        values = [self.pop() for _ in range(size)]
        self.push(tuple(reversed(values)))

    def append(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        if len(values) % 2 or not all(isinstance(key, str) for key in values[::2]):
            raise FormatError(f"{self.section.path}: a dict whose keys are not texts")
        self._top(dict).update(zip(values[::2], values[1::2], strict=True))

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise IndexError(f"no {kind.__name__} to fill")
        return self.stack[-1]

    def name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise IndexError("a name is two texts")
        self.push(Name(module, name))

    def call(self) -> None:
        arguments = self.pop()
        self.push(Call(self.pop(), arguments))


def _step(machine: _Machine, code: bytes) -> None:
    step = _STEPS.get(code)
    if step is None:
        raise FormatError(
            f"{machine.section.path}: no tensor of PyTorch: instruction 0x{code.hex()} of a pickle, "
            f"at byte {machine.section.position - 1}"
        )
    step(machine)


def _stack_global(machine: _Machine) -> None:
    name = machine.pop()
    machine.name(machine.pop(), name)


def _remember(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


_STEPS: Mapping[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda m: m.ignore(1),  # The protocol: instructions are told apart without it.
    b"\x95": lambda m: m.ignore(8),  # A frame: how much to read ahead.
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"\x8a": lambda m: m.push(int.from_bytes(m.section.read(m.number("<B")), "little", signed=True)),
    b"\x8c": lambda m: m.push(m.text(m.number("<B"))),
    b"X": lambda m: m.push(m.text(m.number("<I"))),
    b"C": lambda m: m.push(m.section.skip(m.number("<B"))),
    b"B": lambda m: m.push(m.section.skip(m.number("<I"))),
    b"\x8e": lambda m: m.push(m.section.skip(m.number("<Q"))),
    b"(": lambda m: m.mark(),
    b")": lambda m: m.push(()),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m.push(tuple(m.pop_to_mark())),
    b"]": lambda m: m.push([]),
    b"a": lambda m: m.append([m.pop()]),
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"}": lambda m: m.push({}),
    b"s": lambda m: m.set_items([*reversed([m.pop(), m.pop()])]),
    b"u": lambda m: m.set_items(m.pop_to_mark()),
    b"\x94": lambda m: _remember(m, len(m.memo)),
    b"q": lambda m: _remember(m, m.number("<B")),
    b"r": lambda m: _remember(m, m.number("<I")),
    b"h": lambda m: m.push(m.memo[m.number("<B")]),
    b"j": lambda m: m.push(m.memo[m.number("<I")]),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": _stack_global,
    b"R": lambda m: m.call(),
    b"Q": lambda m: m.push(Persistent(m.pop())),
}
