"""A field that an older file lacks, or that nobody gives, means nothing but for the few listed here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from msgspec.structs import NODEFAULT, Struct, fields

import graphdoctor.values

MEANT = {
    "Check.stale_fails": True,
    "Finding.certainty": "likely",
    "Finding.count": 1,
    "Finding.phase": "forward",
    "LineWork.places": 1,
    "Measurement.ranks": 1,
    "ProgramStep.is_reached": True,
    "ProgramStep.passes": 1,
    "Report.runs_on_gpu": True,
    "Report.values": "real",
    "Verification.inputs": "on fresh inputs",
}


def kinds() -> Iterator[type[Struct]]:
    for found in pkgutil.iter_modules(graphdoctor.values.__path__, "graphdoctor.values."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Struct)
                and value.__module__ == found.name
            ):
                yield value


def test_fields_that_are_left_out_mean_nothing_unless_listed() -> None:
    given = {
        f"{kind.__name__}.{field.name}": field.default
        for kind in kinds()
        for field in fields(kind)
        if field.default is not NODEFAULT
    }
    told = {name: value for name, value in given.items() if value and not isinstance(value, Struct)}
    assert len(given) > 100
    assert told == MEANT
