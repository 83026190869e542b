"""The arguments of a class whose constructor passes ``**options`` on."""

from __future__ import annotations

import inspect

__all__ = ["full_signature"]


def full_signature(cls: type) -> inspect.Signature:
    """Return the signature of a class with the keyword arguments of its bases in place of ``**options``."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        own = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        inherited = bool(parameters)
        for parameter in own:
            # What a base takes by place is for its subclass to give.
            if parameter.kind is parameter.KEYWORD_ONLY or not inherited:
                parameters.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            break
    return inspect.Signature([p for p in parameters.values() if p.kind is not p.VAR_KEYWORD])
