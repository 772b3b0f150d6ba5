"""Name the files in which one profiled run is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from graphdoctor.trace.read.blocks import TracePath

# torch-tb-profiler picks up "<worker>.<ns>.pt.trace.json[.gz]" in any folder, and nothing else.
_TENSORBOARD = ".pt.trace.json.gz"
# Composer writes "rank0.<batch>.pt.trace.json": the number grows with each cycle of the profiler's schedule as well.
_CYCLE = re.compile(r"(?P<worker>.+)\.(?P<cycle>\d+)\.pt\.trace\.json")
_UNTOUCHED = ".perfetto.json.gz"
_ANNOTATED = ".annotated.json.gz"


class KeptTrace(Struct, frozen=True):
    """One trace in three files: for TensorBoard's plugin, as it was recorded, and with findings."""

    folder: Path
    stem: str

    @property
    def tensorboard(self) -> Path:
        """With the categories that the plugin knows."""
        return self.folder / (self.stem + _TENSORBOARD)

    @property
    def untouched(self) -> Path:
        return self.folder / (self.stem + _UNTOUCHED)

    @property
    def annotated(self) -> Path:
        return self.folder / (self.stem + _ANNOTATED)


def kept_trace(folder: Path, worker: str, recorded_ns: int) -> KeptTrace:
    """`worker` may hold no dot: what follows the first one is the time for the plugin."""
    return KeptTrace(folder, f"{worker.replace('.', '_')}.{recorded_ns}")


def without_copies(paths: Sequence[TracePath]) -> list[TracePath]:
    """The traces without the copies that are kept beside one for TensorBoard."""
    known = set(paths)
    return [path for path in paths if not _is_copy(path, known)]


def newest_cycles(paths: Sequence[TracePath]) -> list[TracePath]:
    """The last file that each worker wrote in each folder; a file without a cycle's number is always one."""
    newest: dict[TracePath, tuple[int, TracePath]] = {}
    for path in paths:
        found = _CYCLE.match(path.name)
        worker = path.with_name(found["worker"]) if found else path
        cycle = int(found["cycle"]) if found else 0
        if worker not in newest or newest[worker][0] <= cycle:
            newest[worker] = (cycle, path)
    kept = {path for _, path in newest.values()}
    return [path for path in paths if path in kept]


def _is_copy(path: TracePath, known: set[TracePath]) -> bool:
    for ending in (_UNTOUCHED, _ANNOTATED):
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + _TENSORBOARD) in known
    return False
