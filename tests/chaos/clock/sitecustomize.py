"""A wall clock that can jump, for every interpreter that is started with this folder on its path.

``GIGL_CHAOS_CLOCK`` names a file that holds the seconds that the clock is off by, as a float64.
"""

import mmap
import os
import struct
import time

_FILE = os.environ.get("GIGL_CHAOS_CLOCK", "")
if _FILE and os.path.exists(_FILE):
    with open(_FILE, "rb") as _file:
        _memory = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time, _time_ns = time.time, time.time_ns

    def _offset() -> float:
        (seconds,) = struct.unpack("=d", _memory)
        return float(seconds)

    time.time = lambda: _time() + _offset()
    time.time_ns = lambda: _time_ns() + int(_offset() * 1e9)
