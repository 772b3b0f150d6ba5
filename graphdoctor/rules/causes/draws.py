"""How to draw or compute on the GPU what the step draws or computes on the CPU, also where it sets the seed."""

from __future__ import annotations

from collections.abc import Mapping

from graphdoctor.operators import draws, host_learns
from graphdoctor.rules.causes.differences import Difference
from graphdoctor.rules.causes.numbers import for_number, for_size_of
from graphdoctor.rules.causes.source import call_at
from graphdoctor.values.host_events import PythonEvent, RngState
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Op, Recording

# By the last part of the name of the function that draws: the same draw on the GPU, with its arguments as `{0}`, `{1}`.
_ON_GPU: Mapping[str, str] = {
    "random": 'torch.rand((), device="cuda")',
    "rand": 'torch.rand((), device="cuda")',
    "uniform": 'torch.empty((), device="cuda").uniform_({0}, {1})',
    "gauss": '{0} + {1} * torch.randn((), device="cuda")',
    "normalvariate": '{0} + {1} * torch.randn((), device="cuda")',
    "normal": '{0} + {1} * torch.randn((), device="cuda")',
    "randn": 'torch.randn((), device="cuda")',
    "standard_normal": 'torch.randn((), device="cuda")',
    "randint": 'torch.randint({0}, {1}, (), device="cuda")',
    "randrange": 'torch.randint({0}, {1}, (), device="cuda")',
    "shuffle": 'torch.randperm(n, device="cuda")',
    "sample": 'torch.randperm(n, device="cuda")[:k]',
    "permutation": 'torch.randperm(n, device="cuda")',
    "choice": 'torch.randint(0, n, (), device="cuda")',
    "choices": 'torch.randint(0, n, (k,), device="cuda")',
}
# Of NumPy's, which draw an array if they get its size: how many arguments come before.
_BEFORE_SIZE: Mapping[str, int] = {
    **dict.fromkeys(("random", "rand", "randn", "standard_normal"), 0),
    "choice": 1,
    **dict.fromkeys(("uniform", "normal", "randint"), 2),
}
_BEFORE = "Draw before the step, and pass the value in a GPU tensor: `drawn.fill_(value)` before each replay."


def for_draw(event: PythonEvent, reached: Difference | None) -> str:
    """For a draw of `random` or NumPy."""
    drawn = _on_gpu(event.location, event.name)
    kept = f"Draw on the GPU: `{drawn}`." if drawn else _BEFORE
    if reached is None:
        return kept
    return _with_use(kept, reached)


def for_drawn_copy(place: Location | None) -> str:
    """For a copy of an array that NumPy draws on the same line; "" if none does."""
    drawn = _on_gpu(place, "")
    return f"Draw on the GPU: `{drawn}`." if "size, device=" in drawn else ""


def for_cpu_value(at: Op, reached: Difference | None) -> str:
    """For an operator on the CPU whose result the host reads; "" if a GPU operator takes the result."""
    if host_learns(at) != "value":
        return ""
    kept = "Pass `device=x.device` to the operator, and remove the `.item()`: on a GPU tensor it is a host sync."
    if reached is None:
        return f"{kept} Compute and select with the tensor, `torch.where(condition, a, b)`."
    return _with_use(kept, reached)


def _with_use(kept: str, reached: Difference) -> str:
    if reached.kind == "operators":
        return f"{kept} Compute both branches, and select with `torch.where(condition, a, b)`."
    if reached.kind == "shapes":
        return for_size_of(reached, kept=kept) or f"{kept} Work at one fixed size with a mask."
    return (
        for_number(reached, kept=kept)
        or f"{kept} The operator takes that tensor in place of the number."
    )


def _on_gpu(place: Location | None, event: str) -> str:
    """The draw of a line by torch. `event` names the function that drew, "" if that is not known."""
    name = event.removesuffix("()").rpartition(".")[2]
    called, given, keywords = call_at(place, name) or call_at(place) or (name, (), frozenset())
    name = called.rpartition(".")[2]
    is_numpy = "np." in called or "numpy." in called
    if name == "randint" and len(given) > 1 and not is_numpy:
        given = (given[0], f"{given[1]} + 1")
    if name == "randrange" and len(given) == 1:
        given = ("0", given[0])
    is_sized = is_numpy and ("size" in keywords or len(given) > _BEFORE_SIZE.get(name, len(given)))
    if name == "choice" and is_sized:
        name = "sample" if "replace" in keywords else "choices"
    form = _ON_GPU.get(name, "")
    if ("{0}" in form and not given) or ("{1}" in form and len(given) < 2):
        return ""
    if is_sized:
        form = form.replace("()", "size", 1)
    return form.format(*given).removeprefix("0 + 1 * ")


DRAW_ONCE = "Draw the numbers that must repeat once, before the step, and keep them in a tensor."
_DRAW_FIRST = (
    "In each step, draw the numbers that must repeat once, keep them in a tensor, and use that tensor"
    " at each of the {} places that draw after the same seed."
)


def first_draw(event: RngState, iteration: Iteration) -> str:
    """The first operator on the device that draws after the call and before the next seed; "" if none does."""
    later = (each.op_index for each in _seeding(iteration) if each.op_index > event.op_index)
    for op in iteration.ops[event.op_index : next(later, None)]:
        if op.is_cuda and draws(op):
            return op.name.rpartition(".")[0]
    return ""


def for_repeated(event: RngState, iteration: Iteration, recording: Recording) -> str:
    """For a seed that repeats in each step, or within the step; "" for one that does neither."""
    if event.seed is None:
        return ""
    seeds = [
        {each.seed for each in other.events_of(RngState) if each.location == event.location}
        for other in recording.captured
    ]
    if len(seeds) > 1 and all(each == {event.seed} for each in seeds):
        return DRAW_ONCE
    places = [
        each
        for each in _seeding(iteration)
        if each.seed == event.seed and first_draw(each, iteration)
    ]
    return _DRAW_FIRST.format(len(places)) if len(places) > 1 else ""


def _seeding(iteration: Iteration) -> list[RngState]:
    return [each for each in iteration.events_of(RngState) if each.seed is not None]
