"""A staged directory appears complete or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gigl_loader.partition.output import staged_directory


def _entries(path: Path) -> list[str]:
    return sorted(entry.relative_to(path).as_posix() for entry in path.rglob("*"))


def test_it_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "graph"
    with staged_directory(target) as temporary:
        (temporary / "file").write_text("text")
        assert not target.exists()
        assert temporary.parent == target.parent
    assert _entries(tmp_path) == ["a", "a/b", "a/b/graph", "a/b/graph/file"]


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_exception(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "there").mkdir()

    def fail() -> None:
        with staged_directory(tmp_path / "there" / "a" / "b" / "graph") as temporary:
            (temporary / "file").write_text("text")
            raise error

    with pytest.raises(error):
        fail()
    assert _entries(tmp_path) == ["there"]


def test_an_empty_directory_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    with staged_directory(tmp_path / "graph") as temporary:
        (temporary / "file").write_text("text")
    assert _entries(tmp_path) == ["graph", "graph/file"]


@pytest.mark.parametrize("kind", ["full directory", "file", "broken link"])
def test_what_is_there_is_refused_before_any_work(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "graph"
    if kind == "full directory":
        target.mkdir()
        (target / "file").write_text("text")
    elif kind == "file":
        target.write_text("text")
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = _entries(tmp_path)
    with pytest.raises(ValueError, match="exists"), staged_directory(target):
        pytest.fail("the block ran")
    assert _entries(tmp_path) == before


def test_what_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "graph"

    def lose() -> None:
        with staged_directory(target):
            target.mkdir()
            (target / "file").write_text("theirs")

    with pytest.raises(ValueError, match="exists"):
        lose()
    assert _entries(tmp_path) == ["graph", "graph/file"]


def test_overwriting_replaces_all_of_it(tmp_path: Path) -> None:
    target = tmp_path / "graph"
    target.mkdir()
    (target / "old").write_text("text")
    with staged_directory(target, overwrite=True) as temporary:
        (temporary / "new").write_text("text")
        assert _entries(target) == ["old"]
    assert _entries(tmp_path) == ["graph", "graph/new"]


def test_an_abandoned_directory_is_removed_and_a_living_one_is_not(tmp_path: Path) -> None:
    abandoned = tmp_path / ".graph.building-dead"
    abandoned.mkdir()
    (abandoned / "file").write_text("text")
    other = tmp_path / ".other.building-dead"
    other.mkdir()
    with staged_directory(tmp_path / "graph") as living:
        with staged_directory(tmp_path / "graph") as second:
            assert living.exists()
            (second / "file").write_text("second")
        assert living.exists()
        (tmp_path / "graph" / "file").unlink()
    assert _entries(tmp_path) == [".other.building-dead", "graph"]


def test_the_result_is_open_to_others(tmp_path: Path) -> None:
    with staged_directory(tmp_path / "graph"):
        pass
    assert (tmp_path / "graph").stat().st_mode & 0o777 == 0o755
