"""Prometheus itself reads two storage servers, with the rules under ``deploy/monitoring``."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from tests.support.clusters import addresses_of, servers_of
from tests.support.learnable import learnable_graph
from tests.support.leftovers import wait_until
from tests.support.monitoring import MONITORING, RANGES, dashboard, expressions
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus"),
    pytest.mark.skipif(not MONITORING.exists(), reason="the tests were copied without deploy/"),
    pytest.mark.usefixtures("no_leftovers"),
]
SOON_S = 60.0


class Prometheus:
    """Its HTTP interface."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **arguments: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the series of an expression. Raises for one that it does not take."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def rules(self) -> list[Any]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> set[str]:
        """Return the names of alerts whose condition holds. They fire once it has held for their ``for``."""
        return {rule["name"] for rule in self.rules() if rule["type"] == "alerting" and rule["alerts"]}

    def is_up(self, targets: int) -> bool:
        try:
            return len(self.query("up == 1")) == targets
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def prometheus_of(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run Prometheus with the files of ``deploy/monitoring``, each second over ``targets``."""
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "rules.yaml", folder)
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*command, f"--web.listen-address={address}"], cwd=folder, stdout=log, stderr=log
        ) as process,
    ):
        try:
            found = Prometheus(address)
            assert wait_until(lambda: found.is_up(len(targets)), seconds=SOON_S), (folder / "log").read_text()
            yield found
        finally:
            process.kill()


def test_prometheus_evaluates_every_rule_and_panel_and_notices_a_server_that_ends(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=2)
    both = {server: {"partitions": (0, 1)} for server in range(2)}
    with (
        servers_of(graph, 2, special=both, metrics="127.0.0.1:0") as servers,
        prometheus_of(tmp_path, [server.metrics_address for server in servers]) as prometheus,
        RemoteDistDataset.connect(addresses_of(servers)[0]) as dataset,
        DistNeighborLoader(dataset, [5], batch_size=10) as loader,
    ):

        def has_series(expression: str) -> bool:
            list(loader)
            return bool(prometheus.query(expression))

        for name in ("job:gigl_batches:rate5m > 0", "job_kind:gigl_batch_waiting_seconds:p99_5m > 0"):
            assert wait_until(lambda name=name: has_series(name), seconds=SOON_S), name
        assert wait_until(
            lambda: min(map(holders, prometheus.query("gigl_partition_holders"))) == 2, seconds=SOON_S
        )
        assert {rule["health"] for rule in prometheus.rules()} == {"ok"}, prometheus.rules()
        assert prometheus.alerts() == set()
        quiet = QUIET | {rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting"}

        def without_series() -> set[str]:
            list(loader)  # Rates of a channel need two samples of it.
            return {where for where, text in expressions() if not prometheus.query(filled(text))}

        assert wait_until(lambda: without_series() <= quiet, seconds=SOON_S), without_series() - quiet

        servers[1].close()
        expected = {"GiglServerDown", "GiglServerAway", "GiglPartitionWithoutReplica"}
        assert wait_until(lambda: prometheus.alerts() == expected, seconds=SOON_S), prometheus.alerts()


QUIET = {"Certificate expires in"}
"""Panels without series: the servers have no certificate."""


def holders(series: Any) -> int:
    return int(series["value"][1])


def filled(expression: str) -> str:
    """Return an expression of a panel as Grafana sends it, for all servers."""
    values = RANGES | {"$job": "gigl", "$instance": ".*"}
    assert {f"${each['name']}" for each in dashboard()["templating"]["list"]} - {"$datasource"} <= set(values)
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    return expression
