"""Fuzz target for atheris: ``python tests/fuzz/fuzz_frame.py [corpus] [-max_total_time=60]``.

Bytes are refused with ``FormatError``, or give a frame whose every array and index can be used.
Needs ``pip install atheris``; the unit tests run the same property on fewer, simpler inputs.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

atheris: Any = importlib.import_module("atheris")  # Has no types, and no wheel for every Python.
sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports():
    from gigl_loader.errors import FormatError
    from tests.support.frames import Draft, frame_schema, read_everything


def read_or_refuse(data: bytes) -> None:
    try:
        frame = frame_schema().parse(np.frombuffer(data, np.uint8))
    except FormatError:
        return
    if "failure" not in frame.layout.metadata:
        read_everything(frame)


if __name__ == "__main__":
    corpus = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for folder in corpus[:1]:
        Path(folder).mkdir(exist_ok=True)
        Path(folder, "valid").write_bytes(Draft().buffer().tobytes())
    atheris.Setup(sys.argv, read_or_refuse)
    atheris.Fuzz()
