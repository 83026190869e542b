"""Tokens: files of several, each with a name, and what is refused."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest

from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.secret_files import cluster_key_in, token_in
from gigl_loader.rpc.tokens import Token, authorization, job_key, new_job, parse_tokens

ROOT = Path(__file__).parents[2]
RED, BLUE, BARE = "red-0123456789abcdef", "blue-0123456789abcdef", "bare-0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"{BARE}\n", ["1"]),
        (f"  {BARE}  \r\n\n", ["1"]),
        (f"red {RED}\n", ["red"]),
        (f"# per team\nred {RED}\n\n  {BARE}\nteam.blue-2\t{BLUE}", ["red", "2", "team.blue-2"]),
    ],
)
def test_a_file_holds_a_token_per_line(text: str, names: list[str]) -> None:
    assert [token.name for token in parse_tokens(text)] == names


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds 0 tokens"),
        ("# none\n", "holds 0 tokens"),
        ("short\n", "^a token has at least 16"),
        (f"red {RED}\nred {BLUE}", "two tokens are named 'red'"),
        (f"2 {RED}\n{BLUE}", "two tokens are named '2'"),
        (f"red {RED}\nblue {RED}", "one token appears twice"),
        (f"red {RED} {BLUE}", "^write NAME TOKEN"),
        (f"{BARE}\n\nre/d {RED}", "line 3: the name of a token has"),
        ("\n".join(f"n{each} {RED}{each}" for each in range(257)), "holds 257 tokens"),
    ],
)
def test_what_no_token_file_holds_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as refused:
        parse_tokens(text)
    assert RED not in str(refused.value)


def test_a_service_says_which_token_was_shown(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"red {RED}\nblue {BLUE}\n")
    credentials = Credentials.from_files(token=tmp_path / "tokens")
    for name, secret in (("red", RED), ("blue", BLUE)):
        assert credentials.identify([authorization(secret)]) == name
        assert credentials.identify([authorization(secret).encode()]) == name
        assert secret not in repr(credentials)
    for wrong in (BARE, RED[:-1], RED + "x", "red"):
        assert credentials.identify([authorization(wrong)]) is None
    assert credentials.identify([authorization(RED), authorization(BLUE)]) is None
    assert credentials.caller().token == RED
    assert Credentials.from_json(json.loads(json.dumps(credentials.to_json()))) == credentials


def test_a_caller_shows_one_token(tmp_path: Path) -> None:
    (tmp_path / "one").write_text(f"# ours\nblue {BLUE}\n")
    (tmp_path / "two").write_text(f"red {RED}\nblue {BLUE}\n")
    assert Caller.from_files(token=tmp_path / "one").token == BLUE
    with pytest.raises(ValueError, match=r"two: holds 2 tokens: a caller shows one"):
        Caller.from_files(token=tmp_path / "two")


def test_further_tokens_need_a_first() -> None:
    with pytest.raises(ValueError, match="without a first one"):
        Credentials(token="", other_tokens=(Token(name="red", secret=RED),))


def test_the_placeholder_of_the_example_is_no_token(tmp_path: Path) -> None:
    example = (ROOT / "deploy/kubernetes/secret.example.yaml").read_text()
    [placeholder, *more] = re.findall(r"^ +[\w-]+: (replace-this\S+)$", example, re.MULTILINE)
    (tmp_path / "token").write_text(placeholder)
    with pytest.raises(
        ValueError, match=r"token: this is the placeholder of an example.*openssl rand -hex 32"
    ):
        Credentials.from_files(token=tmp_path / "token")
    for each in (placeholder, *more):
        with pytest.raises(ValueError, match="placeholder"):
            Credentials(token="", cluster_key=each)
    with pytest.raises(ValueError, match="placeholder"):
        Caller(token=placeholder)


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o620, True)]
)
def test_a_secret_that_others_can_read_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, *, warned: bool
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef0123456789abcdef")
    path.chmod(mode)
    for read in (token_in, cluster_key_in):
        caplog.clear()
        read(path)
        expected = f"{path} holds a secret and is open to other users (mode {mode:04o}): chmod 600 it"
        assert caplog.messages == ([expected] if warned else [])


def test_the_group_may_read_what_root_lends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text(BARE)
    if path.stat().st_uid != 0:
        pytest.skip("needs a file of root")
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    for mode, warned in ((0o440, False), (0o444, True)):
        caplog.clear()
        path.chmod(mode)
        Caller.from_files(token=path)
        assert bool(caplog.messages) == warned


def test_a_caller_may_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(BARE)
    assert Caller.from_environment({}) == Caller()
    assert Caller.from_environment({"GIGL_TOKEN_FILE": "", "GIGL_TLS_CA": ""}) == Caller()
    found = Caller.from_environment({"GIGL_TOKEN_FILE": str(tmp_path / "token"), "GIGL_INSECURE": "true"})
    assert found == Caller(token=BARE, insecure=True)
    with pytest.raises(ValueError, match="cannot read"):
        Caller.from_environment({"GIGL_TLS_CA": str(tmp_path / "absent")})


def test_a_token_in_place_of_its_path_is_not_shown() -> None:
    with pytest.raises(
        ValueError, match="given by the path of its file, and a text of 40 characters"
    ) as raised:
        Caller.from_files(token="5ec4e7" * 6 + "abcd")
    assert "5ec4e7" not in str(raised.value)


def test_keys_of_jobs() -> None:
    job, thief = new_job(), new_job()
    keys = {job_key([each], token) for each in (job, thief) for token in ("", "team")}
    assert len(keys) == 4
    assert {len(key or b"") for key in keys} == {32}
    assert job_key([job.encode()], "team") == job_key([job], "team")
    for wrong in ([], [job, job], [job[1:]], [job + "0"], [job.upper()], [b"\xff" * 64], [job[:-1] + "\n"]):
        assert job_key(wrong, "") is None
