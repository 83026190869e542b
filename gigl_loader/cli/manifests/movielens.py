"""Ratings of MovieLens (Harper and Konstan, 2015): ``ratings.csv`` and ``movies.csv``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.listing import Listing

_RATES = ("user", "rates", "movie")


def read(listing: Listing) -> None:
    """Add ratings as edges in time, and movies as nodes. Users are those who rate."""
    if (listing.path / "ratings.dat").exists() or (listing.path / "u.data").exists():
        raise ValueError(f"{listing.path}: of MovieLens, only data sets with ratings.csv can be read yet")
    listing.edges(_RATES, listing.files(["ratings.csv"]))
    listing.rename(_RATES, "userId", "src")
    listing.rename(_RATES, "movieId", "dst")
    listing.rename(_RATES, "timestamp", "time")
    listing.add("times", f"{listing.scope(_RATES)}:time")
    listing.nodes("movie", listing.files(["movies.csv"]))
    listing.rename("movie", "movieId", "id")
