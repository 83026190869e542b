"""Draw specification: the number of the rules by which the kernels and their callers draw."""

DRAW_SPECIFICATION = 2
"""Number of the rules of docs/internals/randomness.md. Raised by every change after which any draw, or any
canonical order, would differ. Builds of different numbers never serve one run, and none resumes the state of
another. ``tests/unit/test_draw_specification.py`` pins draws of each number."""
