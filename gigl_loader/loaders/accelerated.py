"""Attributes of loaders that Hugging Face's Accelerate asks for, and a warning where it saves no state."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

logger = logging.getLogger(__name__)


class AcceleratePrepared:
    """A loader that ``accelerator.prepare_data_loader`` takes as it is, and whose state it then saves."""

    name: str
    _is_accelerate_prepared = True
    """A loader deals its batches to the ranks and brings them to the device by itself."""
    use_stateful_dataloader = True
    """``accelerator.save_state`` keeps the ``state_dict`` of a loader that was prepared."""
    _has_looked = False

    def _warn_of_missing_state(self) -> None:
        """Before the first epoch: warn where checkpoints of Accelerate would have the state of no loader.

        ``accelerator.prepare`` takes instances of PyTorch's ``DataLoader``, and says nothing of others.
        """
        accelerate: Any = sys.modules.get("accelerate.accelerator")
        if self._has_looked or accelerate is None:
            return
        self._has_looked = True
        # Accelerate keeps no list of its Accelerators. The search takes 0.1 s.
        found: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), accelerate.Accelerator)]
        kept = [each for one in found for each in (*one._custom_objects, *one._dataloaders)]
        if found and not any(isinstance(each, AcceleratePrepared) for each in kept):
            logger.warning(
                "%s: accelerator.save_state() saves no state of it: accelerator.prepare() passes it by. Call "
                "accelerator.prepare_data_loader(loader) or accelerator.register_for_checkpointing(loader)",
                self.name,
            )
