"""The files under ``deploy``: valid by the rules of those who read them, and true to the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gigl_server.config import SERVE_OPTIONS, ServeOptions, read_settings, read_yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
JOBSET = DEPLOY / "kubernetes/jobset/jobset.yaml"
MANIFESTS = sorted(
    path
    for path in DEPLOY.glob("kubernetes/**/*.yaml")
    if path.name != "kustomization.yaml" and path != JOBSET
)
WHOLE = [path for path in MANIFESTS if path.parent.name != "tls"]
OF_TRAINERS = {"GIGL_STORE", "GIGL_TOKEN_FILE", "GIGL_TLS_CA", "GIGL_INSECURE"}

pytestmark = pytest.mark.skipif(not DEPLOY.exists(), reason="the tests were copied without deploy/")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def serve_variables() -> set[str]:
    """Return the environment variables that ``gigl-loader serve`` reads."""
    return {option.variable for option in SERVE_OPTIONS.values()}


def image_environment() -> dict[str, str]:
    """Return what the image of the storage server sets."""
    [line] = re.findall(r"^ENV (GIGL_.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return dict(word.split("=", 1) for word in line.split())


def containers(path: Path) -> Iterator[Any]:
    for document in documents(path):
        template = document.get("spec", {}).get("template", {})
        yield from template.get("spec", {}).get("containers", [])


@pytest.mark.parametrize("version", ["1.28", "1.37"])
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name)
def test_manifests_are_valid_by_the_published_schemas(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def groups_of_jobset() -> dict[str, Any]:
    """Return the specifications of its jobs, by group."""
    [jobset] = documents(JOBSET)
    return {group["name"]: group["template"]["spec"] for group in jobset["spec"]["replicatedJobs"]}


def pod_of_jobset(group: str) -> Any:
    return groups_of_jobset()[group]["template"]


def test_the_jobset_is_valid_by_the_published_schemas() -> None:
    [jobset] = documents(JOBSET)
    schema = json.loads((ROOT / "tests/data/jobset_v1alpha2.json").read_text())
    jsonschema.Draft7Validator(schema).validate(jobset)
    for name, spec in groups_of_jobset().items():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        for version in ("1.28", "1.37"):
            kubernetes_validate.validate(job, version, strict=True)


def test_the_jobset_ends_with_its_trainers_and_names_groups_that_exist() -> None:
    [jobset] = documents(JOBSET)
    spec = jobset["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    names = [group["name"] for group in spec["replicatedJobs"]]
    assert names == ["store", "trainer"]
    assert spec["replicatedJobs"][1]["dependsOn"] == [{"name": "store", "status": "Ready"}]


@pytest.mark.parametrize("group", ["store", "trainer"])
def test_pods_of_the_jobset_differ_from_the_other_manifests_in_names_alone(group: str) -> None:
    """Addresses, and where a pod finds its number, are JobSet's own; all else is kept the same."""
    pod = pod_of_jobset(group)["spec"]
    kind = {"store": "StatefulSet", "trainer": "Job"}[group]
    path = DEPLOY / "kubernetes/base" / f"{group}.yaml"
    [other] = [each["spec"]["template"]["spec"] for each in documents(path) if each["kind"] == kind]
    own = {"containers", "restartPolicy", "subdomain"}
    assert {key: pod[key] for key in pod if key not in own} == {
        key: other[key] for key in other if key not in own
    }
    [container], [like] = pod["containers"], other["containers"]
    named = {"env", "args"}
    assert {key: container[key] for key in container if key not in named} == {
        key: like[key] for key in like if key not in named
    }
    wanted = {each["name"] for each in like["env"]} - {"POD_NAME", "POD_NAMESPACE"}
    assert {each["name"] for each in container["env"]} == wanted


def test_a_pod_of_the_jobset_is_told_what_a_server_takes() -> None:
    [container] = pod_of_jobset("store")["spec"]["containers"]
    told = image_environment()
    for each in container["env"]:
        value = each.get("value", "1")
        told[each["name"]] = value.replace("$(GIGL_PARTITION)", "1")
    options = read_settings({}, told, {})
    assert options.partitions == (1,)
    assert options.advertise == "gigl-store-0-1.gigl"
    assert options.peers == ("gigl-store-0-0.gigl:7070",)
    assert pod_of_jobset("store")["spec"]["terminationGracePeriodSeconds"] > options.drain_s
    [trainer] = pod_of_jobset("trainer")["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in trainer["env"]}
    assert told["GIGL_STORE"] == options.peers[0]
    assert "--master-addr=gigl-trainer-0-0.gigl" in trainer["args"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl to put the parts together")
@pytest.mark.parametrize("name", ["base", "tls"])
def test_what_is_applied_is_valid_as_a_whole(name: str) -> None:
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kinds = []
    for document in yaml.safe_load_all(done.stdout):
        kubernetes_validate.validate(document, "1.31", strict=True)
        kinds.append(document["kind"])
    assert {"StatefulSet", "Service", "Job", "PodDisruptionBudget", "NetworkPolicy"} == set(kinds)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_variables_of_containers_are_read_by_who_runs_there(path: Path) -> None:
    for container in containers(path):
        known = serve_variables() if container["name"] == "store" else OF_TRAINERS
        names = {each["name"] for each in container.get("env", []) if each["name"].startswith("GIGL_")}
        assert names <= known


@pytest.mark.parametrize("folder", ["base", "tls"])
def test_a_pod_is_told_what_a_server_takes(folder: str) -> None:
    values = {"POD_NAME": "gigl-store-1", "POD_NAMESPACE": "default", "GIGL_PARTITION": "1"}
    told = image_environment()
    for layer in dict.fromkeys(["base", folder]):
        (store,) = containers(DEPLOY / "kubernetes" / layer / "store.yaml")
        for each in store["env"]:
            text = values.get(each["name"], each.get("value"))
            told[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text)
    options = read_settings({}, told, {})
    assert options.partitions == (1,)
    assert options.advertise == "gigl-store-1.gigl-store.default.svc"
    assert options.peers == ("gigl-store-0.gigl-store.default.svc:7070",)
    assert options.insecure == (folder == "base")
    assert bool(options.tls_cert) == (folder == "tls")
    assert options.cluster_key_file == "/run/gigl-cluster/key"


def test_the_cluster_key_is_mounted_where_servers_look_and_nowhere_else() -> None:
    [store] = containers(DEPLOY / "kubernetes/base/store.yaml")
    mounts = {mount["mountPath"]: mount["name"] for mount in store["volumeMounts"]}
    assert mounts["/run/gigl-cluster"] == "cluster-key"
    for path in (DEPLOY / "kubernetes/base/trainer.yaml", DEPLOY / "kubernetes/tls/trainer.yaml"):
        assert "cluster-key" not in path.read_text()
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]
    for name, service in compose.items():
        held = {secret["source"] for secret in service.get("secrets", [])}
        assert ("cluster-key" in held) == name.startswith("store-")


@pytest.mark.parametrize("folder", ["base", "tls"])
def test_a_trainer_speaks_plain_text_where_the_servers_do(folder: str) -> None:
    told: dict[str, str | None] = {}
    for layer in dict.fromkeys(["base", folder]):
        [trainer] = containers(DEPLOY / "kubernetes" / layer / "trainer.yaml")
        told |= {each["name"]: each.get("value") for each in trainer["env"]}
    assert told["GIGL_INSECURE"] == {"base": "true", "tls": "false"}[folder]
    assert ("GIGL_TLS_CA" in told) == (folder == "tls")
    assert "--insecure" in documents(DEPLOY / "compose.yaml")[0]["services"]["trainer"]["command"]


def test_probes_ask_the_ports_that_servers_bind() -> None:
    (store,) = containers(DEPLOY / "kubernetes/base/store.yaml")
    ports = {port["name"]: port["containerPort"] for port in store["ports"]}
    settings = {each["name"]: each.get("value") for each in store["env"]}
    assert settings["GIGL_LISTEN"] == f"0.0.0.0:{ports['control']}"
    assert ports["data"] == ports["control"] + 1
    assert settings["GIGL_METRICS"] == f"0.0.0.0:{ports['metrics']}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert store[probe]["grpc"]["port"] == ports["control"]


def test_nothing_is_killed_while_it_drains() -> None:
    (_, stateful, *_) = documents(DEPLOY / "kubernetes/base/store.yaml")
    compose = documents(DEPLOY / "compose.yaml")[0]
    unit = (DEPLOY / "systemd/gigl-store@.service").read_text()
    drain = ServeOptions(graph_dir="graph").drain_s
    assert stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > drain
    assert int(compose["services"]["store-0"]["stop_grace_period"].removesuffix("s")) > drain
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drain


def test_the_compose_file_names_what_exists() -> None:
    compose = documents(DEPLOY / "compose.yaml")[0]
    stages = set(re.findall(r"^FROM .* AS (\w+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    for service in compose["services"].values():
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        assert build["target"] in stages
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        assert {secret["source"] for secret in service.get("secrets", [])} <= set(compose["secrets"])
        assert set(service.get("depends_on", [])) <= set(compose["services"])
    for number in range(2):
        store = compose["services"][f"store-{number}"]
        options = read_settings({}, image_environment() | store["environment"], {})
        assert (options.partitions, options.advertise) == ((number,), f"store-{number}")
        assert options.peers == (f"store-{1 - number}:7070",)
        assert options.cluster_key_file == "/run/secrets/cluster-key"


def test_the_images_are_made_of_what_exists() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert "pyproject.toml" in copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    variables = {name for line in lines for name in re.findall(r"\b(GIGL_\w+)=", line)}
    assert variables <= serve_variables()


def test_images_install_the_extra_of_their_task() -> None:
    _, *stages = re.split(r"^FROM .* AS (?=\w)", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    extras = {stage.split()[0]: re.findall(r"whl\)\[(\w+)\]", stage) for stage in stages}
    assert (extras["store"], extras["trainer"]) == (["server"], ["train"])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/gigl-store@.service").read_text()
    [program] = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    (tmp_path / "gigl-store@.service").write_text(unit.replace(program, sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "gigl-store@.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_tells_a_server_what_it_takes() -> None:
    unit = (DEPLOY / "systemd/gigl-store@.service").read_text().replace("\\\n", " ")
    [command] = re.findall(r"^ExecStart=\S+ serve (.*)$", unit, re.MULTILINE)
    words = command.replace("%i", "1").split()
    flags = {flag[2:].replace("-", "_"): value for flag, value in pairwise(words) if flag.startswith("--")}
    assert flags.pop("config") == "/etc/gigl/store.yaml"
    path = DEPLOY / "systemd/store.yaml"
    options = read_settings(flags, {}, read_yaml(path), str(path))
    assert (options.partitions, options.advertise) == ((1,), "store0.example.org")
    assert not options.insecure
    assert options.cluster_key_file == "${CREDENTIALS_DIRECTORY}/cluster.key"


def test_the_shell_takes_the_slurm_script() -> None:
    script = DEPLOY / "slurm/gigl.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    exported = set(re.findall(r"\b(GIGL_[A-Z_]+)=", script.read_text()))
    assert exported <= serve_variables() | OF_TRAINERS
