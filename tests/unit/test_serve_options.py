"""What a storage server is told: by flags, variables and a file, and what it refuses to believe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from gigl_loader.cli.app import build_app
from gigl_server.config import SERVE_OPTIONS, ServeOptions, read_settings, read_yaml

if TYPE_CHECKING:
    from pathlib import Path


def read(
    flags: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    document: dict[str, Any] | None = None,
) -> ServeOptions:
    return read_settings({"graph_dir": "g", **(flags or {})}, environment or {}, document or {}, "gigl.yaml")


def test_defaults_are_those_of_the_options() -> None:
    assert read() == ServeOptions(graph_dir="g")


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file() -> None:
    variables = {"GIGL_WORKERS": "2", "GIGL_LEASE": "7"}
    document = {"workers": 3, "lease": 8, "drain": 9}
    options = read({"workers": 1}, variables, document)
    assert (options.workers, options.lease_s, options.drain_s) == (1, 7.0, 9.0)


def test_every_option_has_all_its_spellings() -> None:
    fields = [option.field for option in SERVE_OPTIONS.values()]
    assert fields == list(ServeOptions.__dataclass_fields__)
    assert [name for name, option in SERVE_OPTIONS.items() if not option.flags] == ["graph_dir"]
    for name, option in SERVE_OPTIONS.items():
        assert option.name == name
        assert option.flags[:1] in ((), ("--" + name.replace("_", "-"),))
        assert option.variable == f"GIGL_{name.upper()}"
        assert option.help


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("graph_dir", ""),
        ("partition", "all that lie there"),
        ("listen", "127.0.0.1:7070"),
        ("peer", ""),
        ("insecure", ""),
        ("metrics", ""),
        ("lease", "60"),
        ("frame_memory", "4GB"),
        ("verify", "lazy"),
        ("scrub_rate", "64MB"),
    ],
)
def test_defaults_are_shown_as_they_would_be_written(name: str, shown: str) -> None:
    assert SERVE_OPTIONS[name].default == shown


def test_the_command_line_has_every_option() -> None:
    group: Any = get_command(build_app())
    arguments = {each.name: (tuple(each.opts), each.help) for each in group.commands["serve"].params}
    assert arguments.pop("config")[0] == ("--config",)
    assert arguments == {
        name: (option.flags or (name,), option.help) for name, option in SERVE_OPTIONS.items()
    }


@pytest.mark.parametrize("given", ["0,3", [0, 3], ["0", 3], ("0,3",)])
def test_partitions_are_written_in_several_ways(given: Any) -> None:
    assert read(document={"partition": given}).partitions == (0, 3)


def test_variables_hold_lists_with_commas_sizes_and_flags() -> None:
    variables = {
        "GIGL_PARTITION": "1",
        "GIGL_PEER": "a:1, b:2",
        "GIGL_FRAME_MEMORY": "1GB",
        "GIGL_INSECURE": "yes",
        "GIGL_DATA_PORT": "99",
        "GIGL_STORE": "of someone else",
    }
    options = read(environment=variables)
    assert options.partitions == (1,)
    assert options.peers == ("a:1", "b:2")
    assert options.frame_memory == 1 << 30
    assert options.insecure
    assert options.data_port == 99


def test_an_option_that_is_misspelt_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown option 'token-file'; known: graph_dir, partition"):
        read_settings({"graph_dir": "graph", "token-file": "key"}, {}, {})


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"worker": 1}, "gigl.yaml: unknown key 'worker'; known: graph_dir, partition"),
        ({"workers": "many"}, "gigl.yaml: workers must be a whole number, got 'many'"),
        ({"workers": 1.5}, "gigl.yaml: workers must be a whole number"),
        ({"workers": True}, "gigl.yaml: workers must be a whole number"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"workers": 99_999}, "workers must be at most 1024, got 99999"),
        ({"lease": "soon"}, "gigl.yaml: lease must be a number of seconds, got 'soon'"),
        ({"lease": 0}, "lease must lie between 1 and 86400 s, got 0"),
        ({"lease": float("nan")}, "lease must lie between"),
        ({"insecure": "perhaps"}, "gigl.yaml: insecure must be true or false"),
        ({"insecure": 1}, "gigl.yaml: insecure must be true or false"),
        ({"peer": {"a": 1}}, "gigl.yaml: peer must be a list"),
        ({"peer": [7070]}, "gigl.yaml: peer must be text, got 7070"),
        ({"peer": ["somewhere"]}, "peer: 'somewhere' is not an address"),
        ({"peer": ["a:0"]}, "peer: a:0: port 0 cannot be asked"),
        ({"listen": "7070"}, "listen: '7070' is not an address"),
        ({"listen": "0.0.0.0:1", "insecure": True}, "stands for every address of this host"),
        ({"listen": "10.0.0.1:1"}, "needs TLS"),
        ({"listen": "10.0.0.1:1", "tls_cert": "c", "tls_key": "k"}, "give token_file, or tls_client_ca"),
        ({"listen": "127.0.0.1:5", "data_port": 5}, "control and data cannot share port 5"),
        ({"data_port": 70000}, "data_port 70000 does not lie in"),
        ({"tls_cert": "c"}, "tls_cert and tls_key go together"),
        ({"tls_ca": "c"}, "tls_ca without tls_cert"),
        ({"partition": [0, 0]}, "names one twice"),
        ({"partition": [-1]}, "partition must be at least 0"),
        ({"partition": []}, "partition: name at least one"),
        ({"frame_memory": "1KB"}, "frame_memory must be at least"),
        ({"frame_memory": "much"}, "frame_memory must be a size"),
        ({"metrics": "9090"}, "metrics: '9090' is not an address"),
        ({"graph_dir": 5}, "gigl.yaml: graph_dir must be text"),
    ],
)
def test_nonsense_is_refused_in_one_line(document: dict[str, Any], said: str) -> None:
    flags = {"graph_dir": None} if "graph_dir" in document else {}
    with pytest.raises((ValueError, TypeError)) as caught:
        read(flags, document=document)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("none", [0, "0", "0MB"])
def test_scrubbing_can_be_turned_off(none: Any) -> None:
    assert read(document={"scrub_rate": none}).scrub_rate == 0


def test_the_line_names_the_variable_that_is_wrong() -> None:
    with pytest.raises(ValueError, match="GIGL_WORKERS must be a whole number, got 'two'"):
        read(environment={"GIGL_WORKERS": "two"})


def test_a_graph_must_be_named() -> None:
    with pytest.raises(ValueError, match="which graph"):
        read_settings({}, {}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML"),
        ("- a", "must hold one mapping"),
        ("\x00", "is not YAML"),
        ("[" * 9000, "YAML"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gigl.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gigl.yaml"
    path.write_text("# nothing yet\n")
    assert read_yaml(path) == {}


def test_no_object_is_made_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gigl.yaml"
    path.write_text("a: !!python/object/apply:os.getpid []\n")
    with pytest.raises(ValueError, match="is not YAML"):
        read_yaml(path)


def test_ports_and_hosts_follow_from_each_other() -> None:
    options = read({"listen": "127.0.0.1:8000"})
    assert (options.data_address.port, options.reachable_host) == (8001, "127.0.0.1")
    assert read({"listen": "127.0.0.1:0"}).data_address.port == 0
    everywhere = read({"listen": "0.0.0.0:8000", "advertise": "me.example", "insecure": True})
    assert everywhere.reachable_host == "me.example"
