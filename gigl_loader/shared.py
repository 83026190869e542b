"""Tensors that a trainer and its sampling processes read and write together.

One memory file without a name holds a page for the lock, then a safetensors document: whoever has the
descriptor has the tensors. Processes that sample see NumPy arrays and import no torch.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.processes import run_state
from gigl_loader.retry import Deadline, attempts
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec, Layout, spec_of

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_PAUSE_S, _MAX_PAUSE_S = 50e-6, 2e-3
_FOREVER_S = 1e6


class SharedTensors(Mapping[str, "Tensor"]):
    """Named tensors in shared memory, under one re-entrant lock.

    ::

        weights = SharedTensors.create({"weight": torch.ones(len(seeds))})
        loader = DistNeighborLoader(dataset, [15, 10], seeds, seed_weights=weights)
        for batch in loader:
            loss = ...  # of out[batch.seed_index], one for each entry of input_id
            with weights.lock():
                weights["weight"][batch.input_id.cpu()] = loss.detach().cpu()

    A sampler of your own has those that the loader got as ``shared_tensors``, in the same memory.

    A tensor of it is a view: writing to it writes to the memory that all share. Take :meth:`lock` to
    read or write several values that belong together. The kernel gives the lock back when its holder
    dies, with whatever the holder had written until then. Tensors are flat: names map to tensors, not
    to further mappings; dtypes are those that safetensors knows, so neither complex nor quantised.
    """

    def __init__(self, fd: int) -> None:
        """Map the memory file ``fd`` that another :class:`SharedTensors` made, and own the descriptor."""
        self._memory = map_memory(fd, os.fstat(fd).st_size)
        self._layout = Layout.parse(self._memory[mmap.PAGESIZE :], what="shared tensors")
        self._lock = _Lock(fd, self._memory[:8].view(np.int64))
        self.fd = fd
        """Of the memory file, for handing it to another process."""
        weakref.finalize(self, os.close, fd)

    @classmethod
    def create(cls, tensors: Mapping[str, Tensor | Array]) -> SharedTensors:
        """Copy ``tensors`` (torch, on any device, or NumPy) into shared memory.

        ``TypeError`` for what is no tensor or has a dtype that cannot be shared.
        """
        arrays = {name: _stored(name, value) for name, value in tensors.items()}
        layout = Layout.plan({name: spec for name, (spec, _) in arrays.items()}, {})
        fd = create_memory("gigl-shared", mmap.PAGESIZE + layout.nbytes)
        os.pwrite(fd, layout.header, mmap.PAGESIZE)
        shared = cls(fd)
        for name, (_, array) in arrays.items():
            shared.array(name)[...] = array
        return shared

    def array(self, name: str) -> Array:
        """Return a tensor as a NumPy array on the shared memory; bfloat16 comes as ``uint16``."""
        if name not in self._layout.specs:
            raise KeyError(f"no shared tensor {name!r}; there are: {', '.join(self) or 'none'}")
        return self._layout.view(self._memory[mmap.PAGESIZE :], name)

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor on the shared memory, which it keeps alive."""
        import torch

        array = self.array(name)
        if self._layout.specs[name].dtype == "BF16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def __contains__(self, name: object) -> bool:
        return name in self._layout.specs  # That of Mapping makes a tensor, for which it imports torch.

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.specs)

    def __len__(self) -> int:
        return len(self._layout.specs)

    @contextmanager
    def lock(self, timeout: float = 60.0) -> Iterator[None]:
        """Keep all other threads and processes out while the block runs. The same thread may nest it.

        ``TimeoutError``, naming the holder, after ``timeout`` seconds. Hold it for as long as copying
        takes and no longer: batches that wait for it are late.
        """
        self._lock.acquire(timeout)
        try:
            yield
        finally:
            self._lock.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "SharedTensors cannot be pickled or copied: the loader hands them to its sampling processes"
        )

    def __repr__(self) -> str:
        tensors = ", ".join(
            f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in self._layout.specs.items()
        )
        return f"SharedTensors({tensors})"


def check_shared(name: str, value: Any) -> SharedTensors | None:
    """Return ``value``, if it is shared tensors or ``None``. ``TypeError`` begins with ``name``."""
    if value is not None and not isinstance(value, SharedTensors):
        raise TypeError(f"{name} must be SharedTensors.create({{...}}), got a {type(value).__name__}")
    return value


class _Lock:
    """Excludes the threads of a process by an ``RLock``, and processes by a lock of the kernel on a file.

    The memory file is opened anew for each time that the lock is held: such a lock belongs to an open
    file, which a descriptor inherited or received would share with its owner.
    """

    def __init__(self, fd: int, holder: npt.NDArray[np.int64]) -> None:
        self._fd = fd
        self._holder = holder
        self._thread = ""
        """Name of the thread of this process that had it last."""
        self._forget()

    def acquire(self, timeout: float) -> None:
        if os.getpid() != self._pid:
            self._forget()  # Forked: what the parent's threads hold is not this process's.
        deadline = time.monotonic() + timeout
        if not self._threads.acquire(timeout=min(max(timeout, 0), _FOREVER_S)):
            raise self._timeout(timeout, f"thread {self._thread} of this process")
        try:
            if not self._depth:
                self._file = self._locked_file(deadline, timeout)
                self._holder[0] = self._pid
                self._thread = threading.current_thread().name
        except BaseException:
            self._let_go()
            raise
        self._depth += 1

    def release(self) -> None:
        if os.getpid() != self._pid:
            return  # Forked while it was held: it is the parent's to release.
        self._depth -= 1
        self._let_go()

    def _let_go(self) -> None:
        if not self._depth and self._file >= 0:
            self._holder[0] = 0
            # Not merely closed: a child forked meanwhile has the open file, too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1
        self._threads.release()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._threads = threading.RLock()
        self._depth = 0
        self._file = -1

    def _locked_file(self, deadline: float, timeout: float) -> int:
        file = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            # The kernel's lock has no deadline.
            for _ in attempts(Deadline(deadline), first_s=_FIRST_PAUSE_S, longest_s=_MAX_PAUSE_S):
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
            raise self._timeout(timeout, self._describe_holder())
        except BaseException:
            os.close(file)
            raise

    def _describe_holder(self) -> str:
        pid = int(self._holder[0])
        if not pid:
            return "another process"
        return f"process {pid} ({'this one' if pid == self._pid else run_state(pid)})"

    def _timeout(self, timeout: float, holder: str) -> TimeoutError:
        return TimeoutError(
            f"the shared tensors did not become free within {timeout:g} s: {holder} holds them; "
            "leave `with lock()` before you ask for a batch"
        )


def _stored(name: str, value: Any) -> tuple[ArraySpec, Array]:
    """Return how a tensor is stored, and its values in that form."""
    if isinstance(value, Mapping):
        raise TypeError(f"shared tensors are flat: {name!r} is a {type(value).__name__}, not a tensor")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            bits = value.contiguous().view(dtype=_int16(value)).numpy()
            return ArraySpec("BF16", bits.shape), bits.view(STORAGE_DTYPES["BF16"])
        value = value.numpy() if not (value.is_quantized or value.is_sparse) else value
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"shared tensor {name!r} must be a dense tensor or an array, got a {type(value).__name__}"
        )
    try:
        return spec_of(value), value
    except FormatError as error:
        raise TypeError(f"shared tensor {name!r}: {error}") from None


def _int16(tensor: Any) -> Any:
    import torch

    return torch.int16
