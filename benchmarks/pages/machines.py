"""The runs of a result file -> one line on the GPU, and a small table of the machines that it was in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tables import Cells, Row, table


@dataclass(slots=True)
class _Machine:
    """The runs of one day on machines of one size."""

    runs: int = 0
    timed: int = 0
    seconds: float = 0.0


def headline(rows: Sequence[Row]) -> Iterator[str]:
    """Which GPU, which software, when; the title of the page's part."""
    runs = [row["about"] for row in rows if "about" in row]
    if not runs:
        yield "## No GPU yet\n"
        return
    dates = sorted({run["date"] for run in runs})
    software = " and ".join(
        dict.fromkeys(f"torch {run['torch']}, Python {run['python']}" for run in runs)
    )
    yield f"## {runs[-1]['gpu']}\n"
    yield (
        f"{software}, {dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}; each step was timed alone on one GPU."
        " [Machines](#machines) lists the runs.\n"
    )


def machines(rows: Sequence[Row]) -> Iterator[str]:
    found: dict[tuple[str, int, int], _Machine] = {}
    states: list[list[str]] = []
    one = _Machine()
    for row in rows:
        if "about" in row:
            run = row["about"]
            states.append(run["nvidia_smi"][0].split(", "))
            key = (run["date"], run["gpus"], run["cores"])
            one = found.setdefault(key, _Machine())
            one.runs += 1
        elif "prepared" in row:
            one.seconds += row["seconds"]
        elif "case" in row and "error" not in row:
            one.timed += 1
    if not found:
        return
    yield "### Machines\n"
    yield f"{_state(states)}\n"
    yield from table(
        ("date", "GPUs", "cores of the host", "runs", "rows", "prepared side by side in"),
        (_cells(key, machine) for key, machine in sorted(found.items())),
    )


def _cells(key: tuple[str, int, int], machine: _Machine) -> Cells:
    yield from key
    yield machine.runs
    yield machine.timed
    yield f"{machine.seconds:.0f} s" if machine.seconds else "-"


def _state(states: Sequence[Sequence[str]]) -> str:
    """What `nvidia-smi` said of the first GPU when each run began: the query of benchmarks/gpu/strategies.py."""
    names, drivers, _, clocks, limits, degrees = (
        set(column) for column in zip(*states, strict=True)
    )
    warm = sorted(map(int, degrees))
    return (
        f"Each host had {' or '.join(sorted(names))} with driver {' or '.join(sorted(drivers))}, clocks of up to"
        f" {' or '.join(sorted(clocks))} and a power limit of {' or '.join(sorted(limits))}; the GPUs had {warm[0]} to"
        f" {warm[-1]} °C when the runs began (`nvidia-smi`)."
    )
