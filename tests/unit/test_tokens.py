"""Tokens: files of several, each with a name, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.tokens import Token, authorization, parse_tokens

if TYPE_CHECKING:
    from pathlib import Path

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
        ("\n".join(f"n{each} {RED}{each}" for each in range(1025)), "holds 1025 tokens"),
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
