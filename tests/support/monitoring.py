"""Files under ``deploy/monitoring``, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
RANGES = {"$__rate_interval": "5m"}
"""Ranges that Grafana puts into the expressions of a dashboard."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the name of each rule or panel with its expression."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
