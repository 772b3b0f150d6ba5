"""How many times longer work takes on a named host than on the host of the profiles.

The figures of host time in `estimate/gpus/common.toml` are those of the class `server`. Another host is
described by five factors, one for each kind of work, and puts its own time in their place.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.gpus import DeviceProfile, Figure, load_profile, profile_names, read_file
from graphdoctor.values.errors import UsageError
from graphdoctor.values.spelling import meant


class HostProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """How many times longer than on a server each kind of work takes; 1.0 throughout is the server."""

    name: str
    title: str
    python: Figure  # calls of modules
    dispatcher: Figure  # operators, views, and what libraries choose
    autograd: Figure  # nodes made, and run
    optimizer: Figure  # the Python and the lists of optimizers
    launches: Figure  # compiled code: launches of kernels and of graphs, the allocator


# The costs of a host by the kind of work that they are.
_COSTS = {
    "python": ("module_call",),
    "dispatcher": ("operator", "collective", "view", "library_call"),
    "autograd": ("autograd", "backward_node", "gradient", "backward_pass"),
    "optimizer": ("optimizer_foreach",),
    "launches": ("allocation",),
}


def host_names() -> tuple[str, ...]:
    """The classes that `load_host` knows, in alphabetical order."""
    found = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name[: -len(".toml")] for name in found if name.endswith(".toml")))


@cache
def load_host(name: str) -> HostProfile:
    """The class called `name`, or a file that `graphdoctor calibrate --host` wrote: what ends in .toml.

    Raises UsageError, naming the known classes, when there is none.
    """
    if name.endswith(".toml"):
        return read_file(Path(name), HostProfile, called="host profile", over={})
    wanted, known = name.strip().lower(), host_names()
    if wanted not in known:
        raise UsageError(
            f"there is no host {name!r} (there are {', '.join(known)}, or a file that"
            f" `graphdoctor calibrate --host -o FILE.toml` writes){meant(wanted, known)}"
        )
    text = (files(__name__) / f"{wanted}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), HostProfile)


@cache
def profile_for(gpu: str, host: str = "") -> DeviceProfile:
    """The GPU's profile, fed by this host; "" leaves the host that the profile comes with.

    Both are names or files. Raises UsageError where there is no such GPU or host.
    """
    profile = load_profile(gpu)
    return on_host(profile, load_host(host)) if host else profile


def profile_beside(device_name: str, gpu: str, host: str = "") -> DeviceProfile:
    """The same on a machine that has a GPU: predictions are for that one, unless `gpu` is a file or nobody knows it."""
    if load_profile(gpu).name in profile_names():
        try:
            return profile_for(load_profile(device_name).name, host)
        except UsageError:
            pass
    return profile_for(gpu, host)


def on_host(profile: DeviceProfile, host: HostProfile) -> DeviceProfile:
    """The same GPU on another host. What a calibration measured of its own host is put aside."""
    return _slowed_by(_on_server(profile), host)


def slowed(profile: DeviceProfile, times: float) -> DeviceProfile:
    """The same machine, were its host so many times as slow."""
    factor = Figure(times, times, times, "the host's speed, changed to see what follows")
    host = HostProfile("slowed", profile.host, factor, factor, factor, factor, factor)
    return _slowed_by(profile, host)


def _on_server(profile: DeviceProfile) -> DeviceProfile:
    """The profile of a file has figures of the host that it was measured on."""
    if profile.name in profile_names():
        return profile
    try:
        server = load_profile(profile.title)
    except UsageError:
        server = load_profile(profile.fitted_on if profile.fitted_on in profile_names() else "h100")
    return replace(profile, host_us=server.host_us, launch_us=server.launch_us)


def _slowed_by(profile: DeviceProfile, host: HostProfile) -> DeviceProfile:
    costs, calls = profile.host_us, profile.call_us
    each = {name: _times(getattr(calls, name), host.python) for name in calls.__struct_fields__}
    own = {
        name: _times(getattr(costs, name), getattr(host, kind))
        for kind, names in _COSTS.items()
        for name in names
    }
    return replace(
        profile,
        call_us=replace(calls, **each),
        host=host.title,
        launch_us=_times(profile.launch_us, host.launches),
        graph_launch_us=_times(profile.graph_launch_us, host.launches),
        graph_node_launch_us=_times(profile.graph_node_launch_us, host.launches),
        host_us=replace(costs, **own),
    )


def _times(figure: Figure, factor: Figure) -> Figure:
    if factor.low == factor.mid == factor.high == 1.0:
        return figure
    return Figure(
        figure.low * factor.low,
        figure.mid * factor.mid,
        figure.high * factor.high,
        f"{figure.source}; times {factor.mid:.3g}: {factor.source}",
    )
