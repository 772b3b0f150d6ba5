"""Numbers, texts, flags, dates and members of enums."""

from __future__ import annotations

import datetime
import decimal
import fractions
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.kinds.kind import Digest, Kind, Restore, Surroundings, Visit
from graphdoctor.target.state.kinds.written import saved_dict
from graphdoctor.target.state.plain import SCALARS
from graphdoctor.target.state.saved_tensor import Saving


class Scalar(Kind):
    types = SCALARS
    is_scalar = True

    def digest(self, value: Any) -> Digest:
        return Digest(value)


class Number(Kind):
    types = (
        decimal.Decimal,
        fractions.Fraction,
        datetime.date,
        datetime.datetime,
        datetime.timedelta,
    )

    def digest(self, value: Any) -> Digest:
        return Digest(repr(value))


class EnumMember(Kind):
    types = (Enum,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        for name, child in list(attributes(visit.value).items()):
            if not name.startswith("_"):
                yield Visit(visit.path.attribute(name), child)

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        return (saved_dict(attributes(value)),)

    def digest(self, value: Any) -> Digest:
        return Digest(str(value))
