"""Labels of links: what a batch of links tells besides its nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gigl_loader.sampling.request import SEED_TIME

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data, HeteroData

    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.sampling.negatives import Negatives
    from gigl_loader.sampling.plans.link import LinkPlan

__all__ = ["LinkLabels"]


@dataclass(frozen=True, slots=True, eq=False)
class LinkLabels:
    """Labels and times of the links of an input, which stay with the trainer."""

    label: Tensor | None = None
    """[M, ...]."""
    time: Tensor | None = None
    """[M]."""

    @classmethod
    def read(cls, label: Any, time: Any, *, num_links: int, negatives: Negatives | None) -> LinkLabels:
        """Check a user's labels and times. ``TypeError`` and ``ValueError`` name the rule that is broken."""
        if label is not None and negatives is not None and negatives.mode == "triplet":
            raise ValueError("edge_label has no meaning with triplets: links and negatives are told apart")
        labels = _tensor("edge_label", label, num_links)
        times = _tensor("edge_label_time", time, num_links)
        if labels is not None and negatives is not None and not _is_counted(labels):
            raise TypeError(f"edge_label with negatives must be integers or floats, got {labels.dtype}")
        return cls(labels, times)

    def attach(self, batch: Data | HeteroData, tensors: FrameTensors, plan: LinkPlan) -> Any:
        """Return ``batch`` with what it tells of its links."""
        indices = {
            name: tensors.tensor(name).to(torch.int64)
            for name in ("src", "dst", "neg_src", "neg_dst")
            if name in tensors.frame.layout.specs
        }
        links = self._attributes(indices, tensors, plan)
        if not hasattr(batch, "edge_types"):
            for name, value in (*links.items(), *_triplet(indices, plan).items()):
                setattr(batch, name, value)
            return batch
        source, _, destination = plan.edge_type
        batch[plan.edge_type].update(links)
        for name, value in _triplet(indices, plan).items():
            batch[source if name == "src_index" else destination][name] = value
        return batch

    def _attributes(
        self, indices: dict[str, Tensor], tensors: FrameTensors, plan: LinkPlan
    ) -> dict[str, Tensor]:
        """Return the attributes of the links' edge type."""
        attributes = {"input_id": tensors.tensor("input_id")}
        which = torch.from_numpy(tensors.frame.array("input_id"))
        device = attributes["input_id"].device
        label = None if self.label is None else self.label[which].to(device, non_blocking=True)
        count = len(which)
        if plan.negatives is not None and plan.negatives.mode == "binary":
            ends = [torch.cat([indices[name], indices[f"neg_{name}"]]) for name in ("src", "dst")]
            attributes["edge_label_index"] = torch.stack(ends)
            positive = torch.ones(count, device=device) if label is None else label + 1
            negative = positive.new_zeros((plan.negatives.count(count), *positive.shape[1:]))
            attributes["edge_label"] = torch.cat([positive, negative])
        elif plan.negatives is None:
            attributes["edge_label_index"] = torch.stack([indices["src"], indices["dst"]])
            if label is not None:
                attributes["edge_label"] = label
        times = None if self.time is None else self.time[which].to(device, non_blocking=True)
        if plan.hops.time_attr is not None:
            attributes[SEED_TIME] = times = tensors.tensor(SEED_TIME)
        if times is not None:
            attributes["edge_label_time"] = self._with_negatives(times, plan)
        return attributes

    def _with_negatives(self, times: Tensor, plan: LinkPlan) -> Tensor:
        if plan.negatives is None or plan.negatives.mode == "triplet":
            return times
        owners = torch.arange(plan.negatives.count(len(times)), device=times.device) % len(times)
        return torch.cat([times, times[owners]])


def _triplet(indices: dict[str, Tensor], plan: LinkPlan) -> dict[str, Tensor]:
    """Return the attributes of triplets. Negative ``a * M + i`` belongs to link i."""
    if plan.negatives is None or plan.negatives.mode == "binary":
        return {}
    negatives = indices["neg_dst"]
    if plan.negatives.amount > 1:
        negatives = negatives.view(int(plan.negatives.amount), -1).t().contiguous()
    return {"src_index": indices["src"], "dst_pos_index": indices["dst"], "dst_neg_index": negatives}


def _is_counted(labels: Tensor) -> bool:
    """Return whether 1 can be added to each label."""
    return labels.dtype != torch.bool and not labels.is_complex()


def _tensor(name: str, value: Any, num_links: int) -> Tensor | None:
    if value is None:
        return None
    tensor = torch.as_tensor(value).detach().cpu()
    if not tensor.ndim or len(tensor) != num_links:
        raise ValueError(f"{name} needs one entry for each of {num_links} links, got {list(tensor.shape)}")
    return tensor
