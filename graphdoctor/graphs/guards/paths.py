"""An attribute, an item, or what a module holds -> its path, as a reader would write it."""

from __future__ import annotations

HOLDERS = ("_parameters", "_buffers", "_modules")


def joined(path: str, key: object) -> str:
    """The path of an attribute or an item."""
    name = f".{key}" if isinstance(key, str) else f"[{key!r}]"
    return f"{path}{name}".removeprefix(".")


def outside(path: str) -> str:
    """The path of the module whose parameters, buffers or submodules a dictionary holds."""
    stem, _, name = path.rpartition(".")
    return stem if name in HOLDERS else path
