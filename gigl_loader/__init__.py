"""Distributed graph sampling: mini-batches that are a pure function of their seeds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigl_loader.dataset import DistDataset as DistDataset
    from gigl_loader.errors import FormatError as FormatError
    from gigl_loader.errors import GiglError as GiglError
    from gigl_loader.errors import SamplingError as SamplingError
    from gigl_loader.errors import StorageUnavailable as StorageUnavailable
    from gigl_loader.errors import WorkerDied as WorkerDied
    from gigl_loader.loaders.ablp import DistABLPLoader as DistABLPLoader
    from gigl_loader.loaders.audit import audit as audit
    from gigl_loader.loaders.audit_report import AuditReport as AuditReport
    from gigl_loader.loaders.base import BaseDistLoader as BaseDistLoader
    from gigl_loader.loaders.dataset import Dataset as Dataset
    from gigl_loader.loaders.embeddings import write_embeddings as write_embeddings
    from gigl_loader.loaders.inference import inference as inference
    from gigl_loader.loaders.input_new_nodes import NewNode as NewNode
    from gigl_loader.loaders.link import DistLinkNeighborLoader as DistLinkNeighborLoader
    from gigl_loader.loaders.link import NegativeSampling as NegativeSampling
    from gigl_loader.loaders.neighbor import DistNeighborLoader as DistNeighborLoader
    from gigl_loader.loaders.sampler import Sampler as Sampler
    from gigl_loader.loaders.stats import StatsWriter as StatsWriter
    from gigl_loader.loaders.subgraph import DistSubgraphLoader as DistSubgraphLoader
    from gigl_loader.sampling.plans.custom import CustomSamplerOptions as CustomSamplerOptions
    from gigl_loader.sampling.plans.neighbor import (
        KHopNeighborSamplerOptions as KHopNeighborSamplerOptions,
    )
    from gigl_loader.sampling.plans.neighbor import LaborSamplerOptions as LaborSamplerOptions
    from gigl_loader.sampling.plans.ppr import PPRMetaPath as PPRMetaPath
    from gigl_loader.sampling.plans.ppr import PPRSamplerOptions as PPRSamplerOptions
    from gigl_loader.sampling.plans.walks import RandomWalkSamplerOptions as RandomWalkSamplerOptions
    from gigl_loader.shared import SharedTensors as SharedTensors

# Loaded on first use: sampling processes import parts of this package and must stay free of torch.
_HOMES = {
    "AuditReport": "gigl_loader.loaders.audit_report",
    "BaseDistLoader": "gigl_loader.loaders.base",
    "CustomSamplerOptions": "gigl_loader.sampling.plans.custom",
    "Dataset": "gigl_loader.loaders.dataset",
    "DistABLPLoader": "gigl_loader.loaders.ablp",
    "DistDataset": "gigl_loader.dataset",
    "DistLinkNeighborLoader": "gigl_loader.loaders.link",
    "DistNeighborLoader": "gigl_loader.loaders.neighbor",
    "DistSubgraphLoader": "gigl_loader.loaders.subgraph",
    "FormatError": "gigl_loader.errors",
    "GiglError": "gigl_loader.errors",
    "KHopNeighborSamplerOptions": "gigl_loader.sampling.plans.neighbor",
    "LaborSamplerOptions": "gigl_loader.sampling.plans.neighbor",
    "NegativeSampling": "gigl_loader.loaders.link",
    "NewNode": "gigl_loader.loaders.input_new_nodes",
    "PPRMetaPath": "gigl_loader.sampling.plans.ppr",
    "PPRSamplerOptions": "gigl_loader.sampling.plans.ppr",
    "RandomWalkSamplerOptions": "gigl_loader.sampling.plans.walks",
    "Sampler": "gigl_loader.loaders.sampler",
    "SamplingError": "gigl_loader.errors",
    "SharedTensors": "gigl_loader.shared",
    "StatsWriter": "gigl_loader.loaders.stats",
    "StorageUnavailable": "gigl_loader.errors",
    "WorkerDied": "gigl_loader.errors",
    "audit": "gigl_loader.loaders.audit",
    "inference": "gigl_loader.loaders.inference",
    "write_embeddings": "gigl_loader.loaders.embeddings",
}

__version__ = "0.2.0"
__all__ = [
    "AuditReport",
    "BaseDistLoader",
    "CustomSamplerOptions",
    "Dataset",
    "DistABLPLoader",
    "DistDataset",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistSubgraphLoader",
    "FormatError",
    "GiglError",
    "KHopNeighborSamplerOptions",
    "LaborSamplerOptions",
    "NegativeSampling",
    "NewNode",
    "PPRMetaPath",
    "PPRSamplerOptions",
    "RandomWalkSamplerOptions",
    "Sampler",
    "SamplingError",
    "SharedTensors",
    "StatsWriter",
    "StorageUnavailable",
    "WorkerDied",
    "audit",
    "inference",
    "write_embeddings",
]


def __getattr__(name: str) -> Any:
    if name == "splits":
        return import_module("gigl_loader.splits")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from gigl_loader.errors import naming_extra

        raise naming_extra(error) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
