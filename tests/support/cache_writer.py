"""A process that replaces the rows of a shared cache until it is killed: ``cache_writer FD``."""

from __future__ import annotations

import os
import sys
from itertools import count

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.native import CacheIndex, PeerSlots, slot_table_size
from gigl_loader.tensors import ArraySpec, Layout

SLOTS, WORDS = 64, 512
NUM_ROWS = 3 * SLOTS


class Part:
    """Rows of int64 [WORDS] in a memory file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        memory = map_memory(fd, os.fstat(fd).st_size)
        layout = Layout.parse(memory)
        self.table, self.heads, self.marks, self.clock, self.rows = (
            layout.view(memory, name) for name in ("table", "heads", "marks", "clock", "rows")
        )

    @classmethod
    def create(cls) -> Part:
        specs = {
            "table": ArraySpec("U32", (slot_table_size(SLOTS),)),
            "heads": ArraySpec("I64", (SLOTS, 2)),
            "marks": ArraySpec("U32", (SLOTS,)),
            "clock": ArraySpec("I64", (1,)),
            "rows": ArraySpec("I64", (SLOTS, WORDS)),
        }
        layout = Layout.plan(specs)
        fd = create_memory("test", layout.nbytes)
        memory = map_memory(fd, layout.nbytes)
        memory[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        return cls(fd)

    def seen(self) -> PeerSlots:
        columns: list[Bytes] = [self.rows.view(np.uint8)]
        return PeerSlots(self.table, self.heads, self.marks, self.clock, columns, first=False)


def pattern(rows: Int64Array) -> Int64Array:
    """Return the contents of rows: no word of one is a word of another."""
    return rows[:, None] * WORDS + np.arange(WORDS)


def main() -> None:
    part = Part(int(sys.argv[1]))
    index = CacheIndex(SLOTS, 0, (part.table, part.heads, part.marks, part.clock))
    for number in count():
        planned = index.plan([(np.arange(SLOTS // 2) * 7 + number * 3) % NUM_ROWS])
        assert planned is not None
        window, _, missing, slots = planned
        part.rows[slots] = pattern(missing)
        index.publish(window)
        index.release(window)


if __name__ == "__main__":
    main()
