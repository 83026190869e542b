"""Callback of Lightning that keeps loaders at the epoch of their trainer, and at the place of its checkpoint.

Every trainer has it: Lightning finds it by an entry point of this distribution. So it imports nothing of the
loaders before a trainer has one.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytorch_lightning import Callback

    from gigl_loader.loaders.base import BaseDistLoader
else:

    def lightning_package() -> Any:
        """Return the package of Lightning that the script uses: classes of the two do not mix."""
        names = ("lightning.pytorch", "pytorch_lightning")
        used = [name for name in names if name in sys.modules]
        there = [name for name in names if find_spec(name.partition(".")[0]) is not None]
        if not used and not there:
            raise ImportError("gigl_loader.lightning needs Lightning: pip install lightning")
        return import_module((*used, *there)[0])

    Callback = lightning_package().Callback

logger = logging.getLogger(__name__)


class LoaderEpochs(Callback):
    """Makes a resumed training see the batches that the undisturbed one would have seen.

    **Checkpoints.** A state counts the batches whose step was done: one that was taken from the loader and
    not used, as in a checkpoint after an exception, comes again. An epoch that a trainer left early
    (``max_steps``, ``max_time``, ``should_stop``) goes on where it was left; Lightning would begin the next.
    An epoch that ended, also by ``limit_train_batches``, is followed by the next. States are loaded where
    Lightning does not load them: after the end of an epoch, and after ``estimated_stepping_batches``.

    **Epochs.** Epoch n of the training is epoch n of a loader that was built meanwhile, and is validated by
    epoch n of a loader for validation. With ``overfit_batches``, each epoch is epoch 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self._states: list[Any] = []
        """Of the checkpoint, by stateful loader for training, until the training starts."""
        self._is_between = False
        """The checkpoint was taken between two epochs."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Let states lack the batches that were taken from loaders and not used yet."""
        states = _states_in(checkpoint)
        fetcher = trainer.fit_loop._data_fetcher
        if not any(map(_is_state, states)) or fetcher is None:
            return
        from gigl_loader.loaders.state import state_before

        unused = fetcher.fetched - trainer.fit_loop.epoch_loop.batch_progress.current.processed
        for number, loader in enumerate(_stateful(trainer)):
            if _is_loader(loader) and unused > 0:
                states[number] = state_before(
                    states[number], unused, loader._epochs.current, loader._schedule
                )

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Let the checkpoint say which epoch goes on, or begins."""
        states = _states_in(checkpoint)
        if trainer.state.fn != "fit" or not any(map(_is_state, states)):
            return
        loop = checkpoint["loops"]["fit_loop"]
        batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
        epoch, current = epochs["current"], batches["current"]
        is_left = 0 < epoch["ready"] == epoch["processed"]
        ended = batches["is_last_batch"] and current["ready"] == current["processed"]
        if ended:
            states[:] = [_of_next_epoch(state) if _is_state(state) else state for state in states]
        batches["is_last_batch"] = ended
        for each in (epochs["total"], epoch) if is_left else ():
            each["processed"] = each["ready"] - (not ended)
            each["completed"] = each["processed"]
        self._states = list(states)
        self._is_between = ended and (is_left or epoch["started"] < epoch["ready"])

    def resume(self, loader: BaseDistLoader) -> None:
        """Load the state of the only loader for training, before its first epoch begins to be sampled."""
        if len(self._states) == 1:
            _resume(loader, self._states[0])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the states that Lightning has not loaded, and count steps as ranks of now count them."""
        states, self._states = self._states, []
        if self._is_between:
            # Lightning would take a batch of the next epoch into the one that ended.
            trainer.fit_loop._restarting = trainer.fit_loop.epoch_loop.restarting = False
            self._is_between = False
        stateful = _stateful(trainer)
        if len(states) == len(stateful):
            found = [pair for pair in zip(stateful, states, strict=True) if _is_loader(pair[0])]
            for loader, state in found:
                _resume(loader, state)
            if found:
                _count_steps(trainer, max((loader for loader, _ in found), key=len))
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for loader in _loaders(trainer.train_dataloader):
            if trainer.overfit_batches > 0:
                loader.set_epoch(0)
            elif loader.epoch < trainer.current_epoch:
                loader.set_epoch(trainer.current_epoch)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        epoch = 0 if trainer.overfit_batches > 0 else trainer.current_epoch
        for loader in _loaders(trainer.val_dataloaders) if trainer.state.fn == "fit" else ():
            if loader.epoch != epoch:
                loader.set_epoch(epoch)


def callbacks() -> list[Callback]:
    """Return what every trainer gets."""
    return [LoaderEpochs()]


def _states_in(checkpoint: dict[str, Any]) -> list[Any]:
    """Return the states of loaders for training, as Lightning keeps them."""
    loop: dict[str, Any] = checkpoint.get("loops", {}).get("fit_loop", {})
    states: list[Any] = loop.get("state_dict", {}).get("combined_loader", [])
    return states


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and {"run_seed", "made_with", "batches"} <= state.keys()


def _of_next_epoch(state: dict[str, Any]) -> dict[str, Any]:
    is_begun = state["batches"] or state["ahead"]
    return {**state, "epoch": state["epoch"] + 1, "batches": 0, "ahead": []} if is_begun else state


def _leaves(loaders: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [] if loaders is None else tree_leaves(loaders)


def _stateful(trainer: Any) -> list[Any]:
    """Return the loaders for training of which Lightning keeps states."""
    leaves = _leaves(trainer.train_dataloader)
    return [each for each in leaves if hasattr(each, "state_dict") and hasattr(each, "load_state_dict")]


def _is_loader(loader: Any) -> bool:
    base = sys.modules.get("gigl_loader.loaders.base")
    return base is not None and isinstance(loader, base.BaseDistLoader)


def _loaders(loaders: Any) -> Iterator[BaseDistLoader]:
    return filter(_is_loader, _leaves(loaders))


def _resume(loader: BaseDistLoader, state: dict[str, Any]) -> None:
    """Load a state, unless the loader stands there."""
    now = loader.state_dict()
    if any(now[name] != state[name] for name in ("run_seed", "epoch", "batches", "ahead")):
        loader.load_state_dict(state)


def _count_steps(trainer: Any, loader: BaseDistLoader) -> None:
    """Have the trainer count the steps of the epoch that are left: other ranks may have had others."""
    current = trainer.fit_loop.epoch_loop.batch_progress.current
    if not current.ready:
        return
    steps, place = trainer.num_training_batches, loader._epochs.pending
    if place.is_underway:
        steps = len(loader) - (loader._schedule.from_origin(place.origin).num_batches - place.first)
    more = steps - current.processed
    vars(current).update({name: value + more for name, value in vars(current).items()})
