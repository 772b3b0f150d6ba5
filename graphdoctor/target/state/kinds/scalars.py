"""Numbers, texts, flags, dates and members of enums."""

from __future__ import annotations

import datetime
from enum import Enum
from typing import Any

from graphdoctor.target.state.kinds.kind import Digest, Kind
from graphdoctor.target.state.plain import SCALARS


class Scalar(Kind):
    types = SCALARS
    is_scalar = True

    def digest(self, value: Any) -> Digest:
        return Digest(value)


class Number(Kind):
    types = (datetime.date, datetime.timedelta)

    def digest(self, value: Any) -> Digest:
        return Digest(repr(value))


class EnumMember(Kind):
    types = (Enum,)

    def digest(self, value: Any) -> Digest:
        return Digest(str(value))
