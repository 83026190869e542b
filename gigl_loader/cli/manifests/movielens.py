"""Ratings of MovieLens (Harper and Konstan, 2015): of 100K (``u.data``), 1M and 10M (``.dat``), and later."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gigl_loader.cli.manifests.listing import Listing

_RATES = ("user", "rates", "movie")
_RATING = ("src", "dst", "rating", "time")
_GENRES = tuple(f"genre_{at}" for at in range(19))
_LAYOUTS: Sequence[Mapping[str, Sequence[str]]] = (
    {
        "u.data": _RATING,
        "u.item": ("id", "title", "released", "video", "url", *_GENRES),
        "u.user": ("id", "age", "gender", "occupation", "zip"),
    },
    {
        "ratings.dat": _RATING,
        "movies.dat": ("id", "title", "genres"),
        "users.dat": ("id", "gender", "age", "occupation", "zip"),
    },
)
"""Files of ratings, movies and users without header lines, and their columns."""


def read(listing: Listing) -> None:
    """Add ratings as edges in time, and movies and users as nodes. Without a file, users are the raters."""
    layout = next((each for each in _LAYOUTS if (listing.path / next(iter(each))).exists()), None)
    listing.add("times", f"{listing.scope(_RATES)}:time")
    if layout is None:
        listing.edges(_RATES, listing.files(["ratings.csv"]))
        for name, new in {"userId": "src", "movieId": "dst", "timestamp": "time"}.items():
            listing.rename(_RATES, name, new)
        listing.nodes("movie", listing.files(["movies.csv"]))
        listing.rename("movie", "movieId", "id")
        return
    listing.encoding("latin-1")
    (ratings, columns), *nodes = layout.items()
    listing.names(_RATES, columns)
    listing.edges(_RATES, listing.files([ratings]))
    for kind, (file, names) in zip(("movie", "user"), nodes, strict=True):
        if kind == "movie" or (listing.path / file).exists():  # 10M has no users.
            listing.names(kind, names)
            listing.nodes(kind, listing.files([file]))
    if "u.data" in layout:
        listing.column("stack", "movie", "genres", "genre_*")
