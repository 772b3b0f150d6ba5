"""A machine's figures, or its host's -> the text of a profile file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile, Figure
from graphdoctor.measure.calibrate.figures import Calibrated
from graphdoctor.measure.calibrate.host import KINDS, MeasuredHost
from graphdoctor.values.escape import visible


def profile_text(found: Calibrated, base: DeviceProfile, gpu: str) -> str:
    """TOML that `--gpu FILE` reads: every figure of the base, with the machine's own in their place.

    What was seen on the way follows as comments.
    """
    figures = found.figures
    lines = [
        f"# {gpu}: figures measured by graphdoctor calibrate; the others are those of {base.title}.",
        f"name = {_text(_slug(gpu))}",
        f"title = {_text(gpu)}",
        f"device_names = {json.dumps([gpu])}",
        f"fitted_on = {_text(_slug(gpu))}",
        f"host = {_text(f'the host of the {gpu}')}",
    ]
    tables = []
    for field in base.__struct_fields__:
        value = getattr(base, field)
        if isinstance(value, Figure):
            lines.append(f"{field} = {_figure(figures.get(field, value))}")
        elif isinstance(value, Struct):
            tables += ["", f"[{field}]", *_table(field, value, figures)]
    seen = [f"# {visible(line)}" for line in found.seen]
    return "\n".join([*lines, *tables, "", *seen, ""])


def host_text(found: MeasuredHost) -> str:
    """TOML that `--host FILE` reads; what was seen on the way follows as comments."""
    profile = found.profile
    lines = [f"name = {_text(profile.name)}", f"title = {_text(profile.title)}"]
    lines += [f"{kind} = {_figure(getattr(profile, kind))}" for kind in KINDS]
    seen = [f"# {visible(line)}" for line in found.seen]
    return "\n".join([*lines, "", *seen, ""])


def _table(group: str, value: Struct, figures: Mapping[str, Figure]) -> Iterator[str]:
    for name in value.__struct_fields__:
        yield f"{name} = {_figure(figures.get(f'{group}.{name}', getattr(value, name)))}"


def _figure(figure: Figure) -> str:
    low, mid, high = (f"{value:.6g}" for value in (figure.low, figure.mid, figure.high))
    return f"{{ low = {low}, mid = {mid}, high = {high}, source = {_text(figure.source)} }}"


def _text(text: str) -> str:
    """A TOML string; JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=True)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
