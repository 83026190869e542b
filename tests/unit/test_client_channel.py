"""Errors that are kept keep nothing else."""

from __future__ import annotations

from gigl_loader.errors import strip_traceback


def raised() -> Exception:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("later") from error
    except ValueError as error:
        return error


def test_an_error_that_is_kept_keeps_neither_frames_nor_what_it_was_raised_from() -> None:
    error = raised()
    kept = strip_traceback(error)
    assert kept is error
    assert not any((kept.__cause__, kept.__context__, kept.__traceback__))
