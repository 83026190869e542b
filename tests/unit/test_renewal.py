"""Files of tokens and certificates that change while they are in use."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.secret_files import FileWatch
from gigl_loader.rpc.tokens import Token
from gigl_server.certificate_renewal import Renewal
from tests.support.certificates import Authority
from tests.support.secret_files import mounted, write

OLD, NEW, THIRD = "old-0123456789abcdef", "new-0123456789abcdef", "third-0123456789abcdef"
AUTHORITY = Authority()


# --- noticing


def test_a_change_is_noticed_once_whatever_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "token", OLD)
    watch = FileWatch([path, None])
    changes: list[Callable[[], object]] = [
        lambda: write(path, OLD),  # Another inode.
        lambda: path.write_text(NEW),
        lambda: path.chmod(0o640),
        path.unlink,
        lambda: write(path, NEW),
        lambda: os.utime(path, ns=(1, 1)),
    ]
    for change in changes:
        assert not watch.changed()
        change()
        assert watch.changed()
    assert not watch.changed()


def test_links_are_followed(tmp_path: Path) -> None:
    mounted(tmp_path, "v1", token=OLD)
    watch = FileWatch([str(tmp_path / "token")])
    mounted(tmp_path, "v2", token=OLD)
    assert watch.changed()
    assert not watch.changed()


# --- callers


def test_a_caller_shows_what_its_files_hold_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mounted(tmp_path, "v1", token=OLD)
    caller = Caller.from_files(token=tmp_path / "token", insecure=True)
    assert caller.latest() is caller
    assert caller.after_refusal() is caller
    mounted(tmp_path, "v2", token=NEW)
    renewed = caller.latest()
    assert renewed == Caller(token=NEW, insecure=True)
    assert renewed.latest() is renewed
    for broken in ("", "short", f"a {NEW}\nb {OLD}", "\x00" * 40):
        caplog.clear()
        write(tmp_path / "v2" / "token", broken)
        for _ in range(3):
            assert renewed.after_refusal() is renewed
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "stay as they are" in caplog.messages[0]
        assert str(tmp_path / "token") in caplog.messages[0]
        assert "0123456789abcdef" not in caplog.text
    mounted(tmp_path, "v3", token=THIRD)
    assert renewed.latest().token == THIRD
    assert NEW not in repr(renewed)


def test_a_certificate_that_does_not_fit_its_key_yet_is_not_used(tmp_path: Path) -> None:
    pairs = [AUTHORITY.sign() for _ in range(2)]
    certificate, key = tmp_path / "cert", tmp_path / "key"
    for path, content in zip((certificate, key), pairs[0], strict=True):
        write(path, content)
    caller = Caller.from_files(certificate=certificate, key=key)
    write(certificate, pairs[1][0])
    assert caller.latest() is caller
    write(key, pairs[1][1])
    renewed = caller.latest()
    assert (renewed.certificate, renewed.key) == pairs[1]


def test_a_caller_can_be_given_to_a_spawned_process(tmp_path: Path) -> None:
    caller = Caller.from_files(token=write(tmp_path / "token", OLD))
    copy = pickle.loads(pickle.dumps(caller))
    write(tmp_path / "token", NEW)
    assert copy.latest().token == caller.latest().token == NEW


def test_a_server_shows_its_other_tokens_in_turn() -> None:
    tokens = (Token(name="b", secret=NEW), Token(name="c", secret=THIRD))
    caller = Credentials(token=OLD, other_tokens=tokens).caller()
    shown = [caller.token]
    for _ in range(3):
        caller = caller.after_refusal()
        shown.append(caller.token)
    assert shown == [OLD, NEW, THIRD, OLD]


def test_a_server_goes_on_showing_its_token_while_it_is_accepted() -> None:
    both = Credentials(
        token=NEW, token_name="new", other_tokens=(Token(name="old", secret=OLD),), insecure=True
    )
    kept = both.showing(OLD)
    assert (kept.token, kept.token_name, kept.insecure) == (OLD, "old", True)
    assert sorted(each.name for each in kept.tokens) == ["new", "old"]
    assert both.showing(THIRD) is both


# --- servers


class Files:
    """A token file, and what renewing made of it."""

    def __init__(self, path: Path) -> None:
        self.path = write(path, OLD)
        self.now = 0.0
        self.used: list[str] = []
        self.error: Exception | None = None
        self.renewal = Renewal(FileWatch([path]), self.renew, lambda: self.now)

    def renew(self) -> None:
        if self.error is not None:
            raise self.error
        self.used.append(Credentials.from_files(token=self.path).token)

    def look(self, seconds: float = 2.0) -> None:
        self.now += seconds
        self.renewal.look()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "token")


def test_files_are_read_once_they_stay_the_same(files: Files) -> None:
    for _ in range(5):
        files.look()
    assert files.used == []
    write(files.path, NEW)
    files.look(0.5)
    files.look()  # Noticed.
    write(files.path, THIRD)
    files.look()  # Changed again.
    assert files.used == []
    for _ in range(5):
        files.look()
    assert files.used == [THIRD]


def test_what_cannot_be_used_is_told_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(files.path, "half")
    for _ in range(100):
        files.look()
    [line] = caplog.messages
    assert line.startswith(f"files changed: certificates and tokens stay as they are: {files.path}: ")
    write(files.path, NEW)
    for _ in range(3):
        files.look()
    assert files.used == [NEW]
    assert caplog.messages[-1] == "files changed: certificates and tokens are those of now"


@pytest.mark.parametrize("error", [OSError("no port"), ValueError("not valid before noon")])
def test_what_may_be_good_later_is_tried_again(
    files: Files, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write(files.path, NEW)
    files.error = error
    for _ in range(40):
        files.look()
    assert len(caplog.messages) == 1
    files.error = None
    for _ in range(40):
        files.look()
    assert files.used == [NEW]


def test_a_signal_reads_at_once_and_is_always_answered(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.renewal.renew("SIGHUP")
    assert files.used == [OLD]
    write(files.path, "half")
    for _ in range(2):
        files.renewal.renew("SIGHUP")
    assert len(caplog.messages) == 2
    for _ in range(100):
        files.look()
    assert len(caplog.messages) == 2
