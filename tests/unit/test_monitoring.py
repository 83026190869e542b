"""The files under ``deploy/monitoring``: true to the metrics of servers, valid for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from tests.support.clusters import addresses_of, servers_of
from tests.support.learnable import learnable_graph
from tests.support.monitoring import MONITORING, RANGES, dashboard, expressions, rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to each series. A label ``job`` of ours is ``exported_job`` there."""

pytestmark = pytest.mark.skipif(not MONITORING.exists(), reason="the tests were copied without deploy/")


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    for variable, value in RANGES.items():
        expression = expression.replace(variable, value)
    found: list[promql_parser.VectorSelector] = []

    def visit(each: promql_parser.Expr) -> None:
        if isinstance(each, promql_parser.VectorSelector):
            found.append(each)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def labels_of(selector: promql_parser.VectorSelector) -> dict[str, str]:
    return {each.name: each.value for each in selector.matchers.matchers}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, set[str]]]:
    """Values by label and by name of each series of two servers that a trainer has used."""
    graph = learnable_graph(tmp_path_factory.mktemp("monitoring") / "graph", num_partitions=2)
    series: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    with servers_of(graph, 2, metrics="127.0.0.1:0") as servers:
        dataset = RemoteDistDataset.connect(addresses_of(servers)[0])
        with dataset, DistNeighborLoader(dataset, [5], batch_size=100) as loader:
            list(loader)
            for server in servers:
                with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as reply:
                    text = reply.read().decode()
                for family in text_string_to_metric_families(text):
                    names = [family.name] if family.type == "gauge" else []
                    for name in [*names, *(each.name for each in family.samples)]:
                        series[name]  # Also a family without series has its name.
                    for sample in family.samples:
                        for label, value in sample.labels.items():
                            series[sample.name]["exported_job" if label == "job" else label].add(value)
    return series


def test_every_name_and_label_is_one_that_servers_export(
    exported: Mapping[str, dict[str, set[str]]],
) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names = set()
    for where, expression in expressions():
        for selector in selectors(expression):
            name = selector.name or ""
            names.add(name)
            if name == "up" or name in recorded:
                continue
            assert name in exported, f"{where}: no server exports {name}"
            for label, value in labels_of(selector).items():
                known = exported[name].get(label, set())
                assert label in OF_PROMETHEUS or value in known, f"{where}: {label} is never {value}"
    assert recorded <= names
    assert sum(name.startswith("gigl_") for name in names) > 20


def test_expressions_group_by_labels_that_their_metrics_have(
    exported: Mapping[str, dict[str, set[str]]],
) -> None:
    grouped = 0
    for where, expression in expressions():
        known = set(OF_PROMETHEUS) | {
            label for each in selectors(expression) for label in exported.get(each.name or "", {})
        }
        for text in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", expression):
            labels = {label.strip() for label in text.split(",")}
            assert labels <= known, f"{where}: {labels - known}"
            grouped += 1
    assert grouped > 10


def test_names_that_are_not_exported_are_found() -> None:
    """The parser sees names in functions, ranges and operands."""
    expression = 'sum by (job) (rate(a_total{x="1"}[$__rate_interval])) / on (job) max_over_time(b[1h]) > c'
    assert [each.name for each in selectors(expression)] == ["a_total", "b", "c"]
    assert labels_of(selectors(expression)[0]) == {"x": "1"}
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        selectors("sum(by (job")


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((MONITORING / "rules_test.yaml").read_text())["tests"]
    fires: set[str] = set()
    is_quiet: set[str] = set()
    for case in (case for each in tests for case in each["alert_rule_test"]):
        (fires if case["exp_alerts"] else is_quiet).add(case["alertname"])
    assert fires == is_quiet == {rule["alert"] for rule in rules() if "alert" in rule}


def test_the_page_lists_every_alert_with_its_severity() -> None:
    page = (MONITORING.parent / "README.md").read_text()
    listed = re.findall(r"^\| `(Gigl\w+)` \| (\w+) \| ", page, re.MULTILINE)
    assert sorted(listed) == sorted(
        (rule["alert"], rule["labels"]["severity"]) for rule in rules() if "alert" in rule
    )


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (apt-get install prometheus)")
@pytest.mark.parametrize(
    ("arguments", "fires"),
    [
        (("check", "rules", "rules.yaml"), True),
        (("check", "config", "prometheus.yaml"), True),
        (("test", "rules", "rules_test.yaml"), True),
        (("test", "rules", "rules_test.yaml"), False),
    ],
    ids=["rules", "config", "tests", "an alert that does not fire"],
)
def test_promtool_accepts_what_is_right(tmp_path: Path, arguments: tuple[str, ...], fires: bool) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    if not fires:
        path = tmp_path / "rules.yaml"
        path.write_text(path.read_text().replace('up{job="gigl"} == 0', 'up{job="gigl"} == 2'))
    command = ["promtool", *arguments]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode == 0) == fires, done.stdout + done.stderr
    assert fires or "GiglServerDown" in done.stdout + done.stderr


def test_the_rules_and_the_example_name_the_same_job() -> None:
    [scrape] = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    jobs = {labels_of(each).get("job", "gigl") for rule in rules() for each in selectors(rule["expr"])}
    assert jobs == {scrape["job_name"]}


def test_panels_fill_the_page_without_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_panels_name_the_variables_of_the_dashboard() -> None:
    found = dashboard()
    variables = {each["name"] for each in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(found))) - {name.removeprefix("$") for name in RANGES}
    assert used == variables


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's library needs Python 3.11")
def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Grafana's own types read the dashboard, and write it with all of its fields."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    written = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(dashboard())))
    assert list(lost_fields(dashboard(), written)) == []
    assert list(lost_fields(dashboard() | {"pannels": []}, written)) == ["/pannels"]


def lost_fields(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths in ``before`` that ``after`` lacks, or has with another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from (
                lost_fields(value, after[name], f"{path}/{name}") if name in after else [f"{path}/{name}"]
            )
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from lost_fields(left, right, f"{path}/{place}")
    elif before != after:
        yield path
