"""Measured eager steps and their recordings -> what their hosts need for an operator, a launch, a module, a gradient.

All figures are fitted together, by the relative errors of steps that the host paces, each family of as much weight
as any other. A host is so many times as slow as the class `server`: the slower host in all it does; the machine of
`graphdoctor/measure/calibrate/reference.toml` likewise, and a calibrated host as many times that one as its
calibration says, by kind of work.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from kernel_figures import at
from measured_steps import Measured, calibrated_hosts
from msgspec import convert
from msgspec.structs import replace
from recorded_steps import Step

from graphdoctor.estimate.gpus import DeviceProfile, Figure, load_profile
from graphdoctor.estimate.hosts import HostProfile, load_host, on_host
from graphdoctor.estimate.timeline import eager_pieces

Floats = npt.NDArray[np.float64]

# Before anything is fitted, in us: the first four are what fit_profile.py reads from the TraceLens H100 traces, the
# others are guesses; each may be off by as much as it is.
_PRIOR = {
    "launch_us": 2.2,
    "host_us.operator": 3.5,
    "host_us.view": 1.7,
    "host_us.library_call": 9.0,
    "host_us.module_call": 5.0,
    "host_us.backward_node": 4.0,
    "host_us.backward_pass": 250.0,
    "host_us.gradient": 50.0,
}
# Not fitted: what these bring cannot be told from an operator's own cost, or is fitted to parts of steps.
_KEPT = ("host_us.autograd", "host_us.allocation", "host_us.optimizer_foreach")
_NOISE = 0.15  # of eager's time, in log
_PACED_BY_HOST = (
    0.8  # of the eager time the device is busy at most, where the host's time can be told
)
_ROUNDS = 8  # of figures by hosts' speeds, and speeds by figures
SLOW, REFERENCE = "slow_server", "reference"
_SAID = re.compile(r"([\d.]+) times a server")


def host_profile(host: str, speeds: Mapping[str, float]) -> HostProfile:
    """The host's, with the speeds that were fitted; its bounds keep their distance in ratio."""
    known = calibrated_hosts()
    if host not in known:
        found = load_host(host)
        times = speeds[SLOW] / found.python.mid if host != "server" else 1.0
    else:
        found = convert(tomllib.loads(known[host]), HostProfile)
        said = _SAID.search(found.python.source)
        assert said is not None, found.python.source
        times = speeds[REFERENCE] / float(said[1])
    changed = {name: getattr(found, name) for name in found.__struct_fields__[2:]}
    return replace(found, **{name: moved(each, times) for name, each in changed.items()})


def moved(figure: Figure, times: float) -> Figure:
    return Figure(figure.low * times, figure.mid * times, figure.high * times, figure.source)


class Hosts:
    """The steps of all hosts, by what each figure counts in them; `figures` are fitted to some of them."""

    def __init__(self, measured: Sequence[Measured], steps: Mapping[str, Step]) -> None:
        self._profile = load_profile("h200")
        self._used = [
            one
            for one in measured
            if one.case in steps and one.is_quiet and one.busy_us < _PACED_BY_HOST * one.eager_us
        ]
        names = (*_PRIOR, *_KEPT)
        cases = {one.case for one in self._used}
        self._counts = {
            case: np.array([_count(steps[case], name) for name in names]) for case in cases
        }

    def figures(self, *, but: str = "") -> dict[str, float]:
        """By path, and the speeds of the slow server and of the reference machine by their names."""
        used = [one for one in self._used if one.family != but]
        speeds = {SLOW: 1.5, REFERENCE: 1.0}
        costs = np.array(list(_PRIOR.values()))
        for _ in range(_ROUNDS):
            costs = self._costs(used, speeds)
            speeds = self._speeds(used, costs, speeds)
        return dict(zip(_PRIOR, costs.tolist(), strict=True)) | speeds

    def _rows(self, used: Sequence[Measured], speeds: Mapping[str, float]) -> Floats:
        """What each figure adds to each step's host time were it 1 us, over the step's time."""
        factors = {host: self._factors(host, speeds) for host in {one.host for one in used}}
        return np.array([self._counts[one.case] * factors[one.host] / one.eager_us for one in used])

    def _factors(self, host: str, speeds: Mapping[str, float]) -> Floats:
        """How many times as long as on a server each figure is there."""
        there = on_host(self._profile, host_profile(host, speeds))
        names = (*_PRIOR, *_KEPT)
        return np.array([at(there, name).mid / at(self._profile, name).mid for name in names])

    def _costs(self, used: Sequence[Measured], speeds: Mapping[str, float]) -> Floats:
        rows = self._rows(used, speeds)
        kept = rows[:, len(_PRIOR) :] @ self._kept
        alike = [sum(other.family == one.family for other in used) for one in used]
        scale = 1.0 / _NOISE / np.array(alike) ** 0.5
        prior = np.array(list(_PRIOR.values()))
        left = np.vstack([rows[:, : len(_PRIOR)] * scale[:, None], np.diag(1.0 / prior)])
        right = np.concatenate([(1.0 - kept) * scale, np.ones(len(prior))])
        return _least_squares(left, right)

    @property
    def _kept(self) -> Floats:
        return np.array([at(self._profile, name).mid for name in _KEPT])

    def _speeds(
        self, used: Sequence[Measured], costs: Floats, speeds: Mapping[str, float]
    ) -> dict[str, float]:
        """So that half of a host's steps take longer than predicted, and half less long."""
        share = self._rows(used, speeds) @ np.concatenate([costs, self._kept])
        found = dict(speeds)
        for name in speeds:
            shares = [s for s, one in zip(share, used, strict=True) if _speed_of(one.host) == name]
            if shares:
                found[name] = speeds[name] / median(shares)
        return found


def _speed_of(host: str) -> str:
    if host in calibrated_hosts():
        return REFERENCE
    return SLOW if host != "server" else ""


def _least_squares(left: Floats, right: Floats) -> Floats:
    """Without what would have to be negative, which is 0."""
    on = np.ones(left.shape[1], np.bool_)
    while True:
        found = np.zeros(len(on))
        found[on] = np.linalg.lstsq(left[:, on], right, rcond=None)[0]
        if (found >= 0.0).all():
            return found
        on &= found > 0.0


def _count(step: Step, name: str) -> float:
    """The host's time in the step were this figure 1 us, and all others nothing."""
    profile = _nothing_but(name, load_profile("h200"))
    pieces = eager_pieces(step.iteration.ops, profile)
    return sum(piece.host_us.mid for piece in pieces)


def _nothing_but(name: str, profile: DeviceProfile) -> DeviceProfile:
    def figure(path: str) -> Figure:
        value = float(path == name)
        return Figure(value, value, value, "counted")

    costs = {field: figure(f"host_us.{field}") for field in profile.host_us.__struct_fields__}
    return replace(
        profile, launch_us=figure("launch_us"), host_us=replace(profile.host_us, **costs)
    )
