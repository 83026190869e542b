"""Hooks of the site: links out of ``docs``, names of the reference, and arguments in docstrings."""

from __future__ import annotations

import importlib
import inspect
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

_UPWARDS = re.compile(r"\[([^\]]*)\]\((\.\./[^)]*)\)")
_ROLE = re.compile(r":(?:class|meth|attr|func):`~?([\w.]+)`")
_ARGUMENT = re.compile(r"^(``.+``)\n((?:    .*\n?)+)", re.MULTILINE)
_NAMES = re.compile(r"^- `([\w.]+)`: (.+(?:\n  .+)*)$", re.MULTILINE)
_DOCUMENTED_BASE = "gigl_loader.loaders.base.BaseDistLoader"

_MERMAID = Path(__file__).parents[1] / "build/mermaid.min.js"
"""Mermaid, as ``make docs`` gets it from npm. Without it, the theme loads it from elsewhere."""
_ASSET = "assets/javascripts/mermaid.min.js"


def on_files(files: Any, *, config: Any) -> Any:
    """Add Mermaid to the site, where it is there."""
    if _MERMAID.exists():
        files.append(File.generated(config, _ASSET, abs_src_path=str(_MERMAID)))
    return files


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Let a page with diagrams load the site's Mermaid. The theme looks for one before it loads its own."""
    if 'class="mermaid"' not in output or not _MERMAID.exists():
        return output
    script = f'<script src="{get_relative_url(_ASSET, page.url)}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with ``text (path)`` in place of links to files that the site does not have.

    The names listed on the page of the reference become their documentation. The search shows guides first.
    """
    if page.file.src_uri == "reference.md" or page.file.src_uri.startswith("internals/"):
        page.meta["search"] = {"boost": 0.2}
    if page.file.src_uri == "reference.md":
        markdown = _NAMES.sub(_documentation, markdown)
    folder = posixpath.dirname(page.file.src_uri)
    return _UPWARDS.sub(lambda link: _named(link, folder), markdown)


def _named(link: re.Match[str], folder: str) -> str:
    text, path = link.groups()
    whole = posixpath.normpath(posixpath.join(folder, path))
    if not whole.startswith("../"):
        return link[0]
    path = whole.removeprefix("../")
    return text if text.strip("`") in path else f"{text} (`{path}`)"


def _documentation(item: re.Match[str]) -> str:
    """Return the directives of mkdocstrings for the names that a line lists of a module."""
    module = importlib.import_module(item[1])
    names = re.findall(r"`(\w+)`", item[2])
    return "\n".join(_directive(getattr(module, name)) for name in names)


def _directive(value: Any) -> str:
    """Return the directive for a public name, at the place where it is defined."""
    if inspect.ismodule(value):
        return f"\n::: {value.__name__}\n"
    options = {
        "inherited_members": _shows_inherited(value),
        "show_if_no_docstring": getattr(value, "_is_protocol", False),
    }
    return f"\n::: {value.__module__}.{value.__qualname__}\n    options: {json.dumps(options)}\n"


def _shows_inherited(value: Any) -> bool:
    """Whether members of base classes are shown: not those documented under another name or by others."""
    bases = inspect.getmro(value)[1:-1] if inspect.isclass(value) else ()
    return not any(
        f"{base.__module__}.{base.__qualname__}" == _DOCUMENTED_BASE
        or base.__module__.split(".")[0] in ("torch_geometric", "pytorch_lightning", "lightning")
        for base in bases
    )


class Arguments(griffe.Extension):
    """Turns the arguments in a docstring, which are indented below their names, into a list."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ARGUMENT.sub(_item, _ROLE.sub(r"`\1`", obj.docstring.value))


def _item(argument: re.Match[str]) -> str:
    name, text = argument.groups()
    return f"- {name}: {' '.join(text.split())}\n"
