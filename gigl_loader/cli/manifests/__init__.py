"""Manifests of other systems: ``--from FORM PATH`` stands for tables and their options.

Each form has a module with ``read(listing)``, which adds the tables to a listing and reads no row of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.cli.build_options import Form

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.cli.build_options import TableOptions
    from gigl_loader.cli.manifests.listing import Listing
    from gigl_loader.cli.schema_file import RelationalTable


def with_manifest(options: TableOptions) -> tuple[TableOptions, list[RelationalTable]]:
    """Return the options with those that ``--from`` stands for, and its relational tables.

    Options of the command line win. A path that is not of the form is a ``ValueError`` or an ``OSError``.
    """
    from gigl_loader.cli.manifests.listing import Listing

    if options.manifest is None:
        return options, []
    form, path = options.manifest
    listing = Listing(form.value, path, options)
    _readers()[form](listing)
    return listing.options(), listing.relational


def _readers() -> dict[Form, Callable[[Listing], None]]:
    from gigl_loader.cli.manifests import (
        dgl,
        distdgl,
        graphbolt,
        graphstorm,
        movielens,
        ogb,
        property_graph,
        relbench,
        snap,
    )

    return {
        Form.dgl: dgl.read,
        Form.distdgl: distdgl.read,
        Form.graphbolt: graphbolt.read,
        Form.graphstorm: graphstorm.read,
        Form.movielens: movielens.read,
        Form.neo4j: property_graph.read,
        Form.neptune: property_graph.read,
        Form.ogb: ogb.read,
        Form.relbench: relbench.read,
        Form.snap: snap.read,
    }
