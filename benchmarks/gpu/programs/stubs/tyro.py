"""`cli` for flat dataclasses: `--name value` sets a field by the type of its default, `--no-name` one to False."""

from __future__ import annotations

import sys
from typing import Any


def cli(kind: type[Any]) -> Any:
    made, given = kind(), iter(sys.argv[1:])
    for option in given:
        name = option.removeprefix("--").replace("-", "_")
        if name.startswith("no_"):
            setattr(made, name.removeprefix("no_"), False)
        else:
            setattr(made, name, type(getattr(made, name))(next(given)))
    return made
