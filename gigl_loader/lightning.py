"""Lightning data module: loaders built in each rank's process, and resumed from checkpoints.

Importing this module needs Lightning; importing ``gigl_loader`` does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves

from gigl_loader.lightning_epochs import LoaderEpochs
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.dataset import Dataset, check_dataset
from gigl_loader.loaders.stats import StatsRates

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningDataModule
else:
    from gigl_loader.lightning_epochs import lightning_package

    Callback, LightningDataModule = lightning_package().Callback, lightning_package().LightningDataModule

logger = logging.getLogger(__name__)

_TRAIN, _VAL = "train", "val"


class GiglDataModule(LightningDataModule):
    """The loaders of a dataset for ``Trainer.fit``, ``validate``, ``test`` and ``predict``.

    ::

        data = GiglDataModule(
            lambda: DistDataset.open("graph"),
            DistNeighborLoader,
            num_neighbors=[10, 5], batch_size=512, num_workers=2,       # of all loaders
            train={"input_nodes": "train", "shuffle": True, "seed": 1},
            val={"input_nodes": "val"},
        )
        Trainer(devices=2, strategy="ddp").fit(model, datamodule=data)

    Loaders are built when Lightning asks for them, in the process that uses them, and shut down in
    ``teardown`` and after an exception. Under several ranks each gets its share of the input.

    **Checkpoints** hold the state of the loader for training, at any place of an epoch and whatever saves
    them. ``fit(ckpt_path=...)`` goes on with the very next batch, with any number of workers and ranks, also
    where the trainer left an epoch early (``max_steps``, ``max_time``); epoch n of the training is epoch n of
    the loader. A loader of other inputs or options is refused with the difference. Epoch n of the training is
    validated by epoch n of the loader for validation. With ``overfit_batches``, every epoch has the batches
    of epoch 0.

    A loader's ``device`` is that of the trainer, its ``name`` that of its stage, unless they are given.
    """

    def __init__(
        self,
        dataset: Dataset | Callable[[], Dataset],
        loader_class: type[BaseDistLoader],
        *,
        train: Mapping[str, Any] | None = None,
        val: Mapping[str, Any] | None = None,
        test: Mapping[str, Any] | None = None,
        predict: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> None:
        """Keep the arguments. Nothing is opened or started.

        ``dataset``
            A dataset, or a callable that opens one in the process of each rank, where it is closed in
            ``teardown``.
        ``loader_class``
            ``DistNeighborLoader``, ``DistLinkNeighborLoader``, ``DistABLPLoader`` or a class of your own.
        ``train``, ``val``, ``test``, ``predict``
            Keyword arguments of the loader for this stage; ``None`` where there is none. The key
            ``loader_class`` names another class for the stage, which does not take ``common`` arguments.
        ``common``
            Keyword arguments of the loaders of all stages. Those of a stage go before.

        ``TypeError`` for a class that is no loader, and for arguments that are no mapping. Arguments of
        loaders are checked when these are built.
        """
        super().__init__()
        self._dataset_source = dataset
        self._dataset: Dataset | None = None
        self._loaders: dict[str, BaseDistLoader] = {}
        """By stage, with loaders that were shut down: their state may still be saved."""
        self._validated: dict[str, Any] | None = None
        """State of the loader for validation, of a checkpoint, until it is built."""
        if not callable(dataset) or hasattr(dataset, "open_source"):
            check_dataset(dataset)
        stages = {_TRAIN: train, _VAL: val, "test": test, "predict": predict}
        self._stages = {
            stage: _StageArguments.read(stage, loader_class, arguments, common)
            for stage, arguments in stages.items()
            if arguments is not None
        }
        if val is None:
            # Lightning takes an inherited method for one that is not there, and does not validate.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    # What Lightning calls

    def setup(self, stage: str | None = None) -> None:
        """Open the dataset, in the process of a rank."""
        if self._dataset is None:
            given: Any = self._dataset_source
            self._dataset = given if hasattr(given, "open_source") else given()
            check_dataset(self._dataset)
        callbacks: Any = getattr(self.trainer, "callbacks", None)
        if callbacks is not None and self._epochs is None:
            callbacks.append(LoaderEpochs())  # Where this distribution is on the path, and not installed.

    def train_dataloader(self) -> BaseDistLoader:
        return self._build(_TRAIN)

    def val_dataloader(self) -> Any:
        # Not called without ``val``, except of a module that was pickled on its way to a rank.
        return self._build(_VAL) if _VAL in self._stages else []

    def test_dataloader(self) -> BaseDistLoader:
        return self._build("test")

    def predict_dataloader(self) -> BaseDistLoader:
        return self._build("predict")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader for validation; Lightning keeps those of loaders for training."""
        if _VAL in self._loaders:
            return {_VAL: self._loaders[_VAL].state_dict()}
        return {} if self._validated is None else {_VAL: self._validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint for the loader that is built next."""
        self._validated = state_dict.get(_VAL)

    def teardown(self, stage: str | None = None) -> None:
        """Shut the loaders down, and close a dataset that was opened here. Calling it again does nothing."""
        for loader in self._loaders.values():
            loader.shutdown()
        if self._dataset is not None and self._dataset is not self._dataset_source:
            self._dataset.close()
        self._dataset = None

    def on_exception(self, exception: BaseException) -> None:
        self.teardown()

    def follow_epoch(self, stage: str) -> None:
        """Let the loader of a stage begin the epoch of the trainer, where it has begun none. Not needed."""
        loader = self._loaders.get(stage)
        if loader is not None and self.trainer is not None and loader.epoch < self.trainer.current_epoch:
            loader.set_epoch(self.trainer.current_epoch)

    # Inside

    @property
    def _epochs(self) -> LoaderEpochs | None:
        """Callback of the trainer."""
        callbacks: Any = getattr(self.trainer, "callbacks", ())
        return next((each for each in callbacks if isinstance(each, LoaderEpochs)), None)

    def _build(self, stage: str) -> BaseDistLoader:
        """Build the loader of a stage."""
        if stage not in self._stages:
            given = ", ".join(self._stages) or "none"
            raise ValueError(
                f"GiglDataModule has no arguments for {stage}= (given: {given}): pass {stage}={{...}}"
            )
        before = self._loaders.get(stage)
        if before is not None:
            before.shutdown()
        self.setup()
        assert self._dataset is not None
        defaults = {"name": stage}
        if self.trainer is not None:
            defaults["device"] = str(self.trainer.strategy.root_device)
        loader = self._stages[stage].build(self._dataset, defaults)
        self._loaders[stage] = loader
        if stage == _TRAIN and self._epochs is not None:
            self._epochs.resume(loader)
        if stage == _VAL and self._validated is not None:
            # The run seed is all that counts: which epoch comes next follows from that of the training.
            state, self._validated = {**self._validated, "batches": 0, "ahead": []}, None
            try:
                loader.load_state_dict(state)
            except ValueError as error:
                logger.warning("validation goes on with a loader of its own run seed: %s", error)
        return loader


class LoaderStatsMonitor(Callback):
    """Logs where the time of the training loaders goes: ``Trainer(callbacks=[LoaderStatsMonitor()])``.

    Values are those of :meth:`~gigl_loader.loaders.stats.StatsRates.read`: ``loader/seconds_waiting_share``
    and others, since the last values, and ``loader/epoch/seconds_waiting_share`` and others of each epoch.
    They go to the trainer's loggers, so that they are those of rank 0. Of several loaders, the names take the
    place of ``loader``.
    """

    def __init__(self, *, every_n_steps: int | None = None) -> None:
        """``every_n_steps``: by default ``log_every_n_steps`` of the trainer. ``ValueError`` below 1."""
        super().__init__()
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}")
        self._every = every_n_steps
        self._steps: dict[str, StatsRates] = {}
        self._epochs: dict[str, StatsRates] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check that there is a logger."""
        if not trainer.loggers:
            raise ValueError(
                "LoaderStatsMonitor needs a logger, and the trainer has none: Trainer(logger=...)"
            )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        found = [each for each in tree_leaves(trainer.train_dataloader) if isinstance(each, BaseDistLoader)]
        names = ["loader"] if len(found) == 1 else [each.name for each in found]
        self._epochs = {name: StatsRates(each) for name, each in zip(names, found, strict=True)}
        self._steps = {name: StatsRates(each) for name, each in zip(names, found, strict=True)}

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % (self._every or max(trainer.log_every_n_steps, 1)) == 0:
            self._log(trainer, self._steps, "")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer, self._epochs, "epoch/")

    @staticmethod
    def _log(trainer: Any, rates: Mapping[str, StatsRates], period: str) -> None:
        values = {
            f"{name}/{period}{key}": value
            for name, each in rates.items()
            for key, value in each.read().items()
        }
        if values:
            for one in trainer.loggers:
                one.log_metrics(values, step=trainer.global_step)


class _StageArguments:
    """Loader class and arguments of one stage."""

    def __init__(self, loader_class: type[BaseDistLoader], arguments: dict[str, Any]) -> None:
        self._loader_class = loader_class
        self._arguments = arguments

    @classmethod
    def read(
        cls, stage: str, loader_class: Any, arguments: Any, common: Mapping[str, Any]
    ) -> _StageArguments:
        if not isinstance(arguments, Mapping):
            raise TypeError(f"{stage} must be a mapping of a loader's arguments, got {arguments!r}")
        own = {name: value for name, value in arguments.items() if name != "loader_class"}
        chosen = arguments.get("loader_class", loader_class)
        if not isinstance(chosen, type) or not issubclass(chosen, BaseDistLoader):
            raise TypeError(f"loader_class must be a class such as DistNeighborLoader, got {chosen!r}")
        return cls(chosen, own if "loader_class" in arguments else {**common, **own})

    def build(self, dataset: Dataset, defaults: Mapping[str, Any]) -> BaseDistLoader:
        arguments = {**defaults, **self._arguments}
        if "pin_memory_device" in self._arguments and "device" not in self._arguments:
            del arguments["device"]
        build: Any = self._loader_class
        loader: BaseDistLoader = build(dataset, **arguments)
        return loader
