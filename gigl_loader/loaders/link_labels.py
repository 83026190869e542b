"""Labels and times of links: what batches of links have of them, beside the labels of negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gigl_loader.arrays import tensor_of
from gigl_loader.sampling.request import SEED_TIME

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data, HeteroData

    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.sampling.negatives import Negatives
    from gigl_loader.sampling.plans.link import LinkPlan


_ATTRIBUTES = ("edge_label", "edge_label_index", "edge_label_time")
"""Attributes of the links of a batch. Columns of edges may have these names, as after ``RandomLinkSplit``."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkLabels:
    """Labels and times of the links of an input, which stay with the trainer."""

    label: Tensor | None = None
    """[M, ...]."""
    time: Tensor | None = None
    """[M]."""
    negatives_take_zero: bool = False
    """Binary negatives have the label 0, which some links have as well: batches add 1 to labels of links."""

    @classmethod
    def read(cls, label: Any, time: Any, *, num_links: int, mode: str | None) -> LinkLabels:
        """Check a user's labels and times. ``TypeError`` and ``ValueError`` name the rule that is broken.

        ``label``: of the whole input, not of one rank's share, so that all ranks add the same.
        ``mode``: that of the negatives.
        """
        if label is not None and mode == "triplet":
            raise ValueError("edge_label has no meaning with triplets: links and negatives are told apart")
        labels = _tensor("edge_label", label, num_links)
        times = _tensor("edge_label_time", time, num_links)
        if labels is not None and mode is not None and not _is_counted(labels):
            raise TypeError(
                "edge_label with negatives must be signed integers, uint8, floats or booleans, got "
                f"{labels.dtype}"
            )
        return cls(labels, times, mode == "binary" and labels is not None and _begin_at_zero(labels))

    def attach(self, batch: Data | HeteroData, tensors: FrameTensors, plan: LinkPlan) -> Any:
        """Return ``batch`` with the attributes of its links."""
        indices = {
            name: tensors.tensor(name).to(torch.int64)
            for name in ("src", "dst", "neg_src", "neg_dst")
            if name in tensors.frame.layout.specs
        }
        which = torch.from_numpy(tensors.frame.array("input_id"))
        links = {"input_id": tensors.tensor("input_id")}
        times = None if self.time is None else self._of(self.time, which, tensors)
        if plan.hops.time_attr is not None:
            times = tensors.tensor(SEED_TIME)
        ends: tuple[dict[str, Tensor], ...] = ({}, {})
        if plan.mode == "triplet":
            ends = _triplet(indices, plan, {} if times is None else {SEED_TIME: times})
        else:
            links |= self._labelled(indices, which, tensors, plan)
            if times is not None:
                links |= {SEED_TIME: times} if plan.hops.time_attr is not None else {}
                links["edge_label_time"] = _with_negatives(times, plan.negatives)
        own = batch[plan.edge_type] if hasattr(batch, "edge_types") else batch
        for name in _ATTRIBUTES[plan.mode == "triplet" :]:  # Where links are triplets, no label is of them.
            if name in own:
                del own[name]
        if own is batch:
            for name, value in {**links, **ends[0], **ends[1]}.items():
                setattr(batch, name, value)
            return batch
        own.update(links)
        batch[plan.edge_type[0]].update(ends[0])
        batch[plan.edge_type[2]].update(ends[1])
        return batch

    def _labelled(
        self, indices: dict[str, Tensor], which: Tensor, tensors: FrameTensors, plan: LinkPlan
    ) -> dict[str, Tensor]:
        """Return the local ends and the labels of links and binary negatives."""
        label = None if self.label is None else self._of(self.label, which, tensors)
        if plan.negatives is None:
            links = {"edge_label_index": torch.stack([indices["src"], indices["dst"]])}
            return links if label is None else {**links, "edge_label": label}
        ends = [torch.cat([indices[name], indices[f"neg_{name}"]]) for name in ("src", "dst")]
        if label is None:
            positive = torch.ones(len(which), device=ends[0].device)
        else:
            positive = label + 1 if self.negatives_take_zero else label
        negative = positive.new_zeros((plan.negatives.count(len(which)), *positive.shape[1:]))
        return {"edge_label_index": torch.stack(ends), "edge_label": torch.cat([positive, negative])}

    def _of(self, values: Tensor, which: Tensor, tensors: FrameTensors) -> Tensor:
        """Return the values of some links, on the device of the batch."""
        return values[which].to(tensors.tensor("input_id").device, non_blocking=True)


def _with_negatives(times: Tensor, negatives: Negatives | None) -> Tensor:
    if negatives is None:
        return times
    owners = torch.arange(negatives.count(len(times)), device=times.device) % len(times)
    return torch.cat([times, times[owners]])


def _triplet(
    indices: dict[str, Tensor], plan: LinkPlan, times: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the attributes of source and destination nodes. Negative ``a * M + i`` belongs to link i."""
    negatives, count = indices["neg_dst"], len(indices["src"])
    if plan.negatives is None or plan.negatives.amount > 1:
        negatives = negatives.view(len(negatives) // count, count).t().contiguous()
    of_source = {"src_index": indices["src"], **times}
    return of_source, {"dst_pos_index": indices["dst"], "dst_neg_index": negatives, **times}


def _begin_at_zero(labels: Tensor) -> bool:
    """Return whether the smallest label is 0. ``ValueError`` where 1 cannot be added to the largest one."""
    if not labels.numel() or labels.min() != 0:
        return False
    if not labels.is_floating_point() and labels.dtype != torch.bool:
        largest = torch.iinfo(labels.dtype).max
        if labels.max() == largest:
            raise ValueError(
                f"edge_label has 0, so that binary negatives add 1 to every label, and {largest} is the "
                f"largest of {labels.dtype}: pass a wider dtype"
            )
    return True


def _is_counted(labels: Tensor) -> bool:
    """Return whether torch can add 1 to each label."""
    unsigned = (torch.uint16, torch.uint32, torch.uint64)
    return not labels.is_complex() and labels.dtype not in unsigned


def _tensor(name: str, value: Any, num_links: int) -> Tensor | None:
    if value is None:
        return None
    tensor = tensor_of(name, value)
    if not tensor.ndim or len(tensor) != num_links:
        raise ValueError(f"{name} needs one entry for each of {num_links} links, got {list(tensor.shape)}")
    return tensor
