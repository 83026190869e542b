"""A wall clock that can jump, for every interpreter that is started with this folder on its path.

``GIGL_CHAOS_CLOCK`` names a file that holds the seconds that the clock is off by, as a float64.

A clock that really jumps does so for Python and for C at once. Here C keeps the true time, so the modules of
grpc do, too: the deadlines that they compute are absolute, and compared by its core, in C.
"""

import mmap
import os
import struct
import sys
import time

_FILE = os.environ.get("GIGL_CHAOS_CLOCK", "")
if _FILE and os.path.exists(_FILE):
    with open(_FILE, "rb") as _file:
        _memory = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time, _time_ns = time.time, time.time_ns

    def _offset() -> float:
        (seconds,) = struct.unpack("=d", _memory)
        return float(seconds)

    def _seen() -> float:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return _time() if caller.startswith("grpc.") else _time() + _offset()

    time.time = _seen
    time.time_ns = lambda: _time_ns() + int(_offset() * 1e9)
