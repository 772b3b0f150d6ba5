"""What was found out about a model -> its plan, and the graphs of its modules, if there are any."""

from __future__ import annotations

from graphdoctor.captured.parts import Parts
from graphdoctor.captured.plan import CapturePlan
from graphdoctor.captured.study import Study


def inference_plan(found: Study) -> tuple[CapturePlan, Parts | None]:
    """For calls without gradients."""
    total = found.launches.get("", 0)
    if found.graph is not None:
        return CapturePlan("whole", launches=total, captured_launches=total), None
    if found.parts is None:
        return CapturePlan("eager", launches=total, obstacles=found.obstacles), None
    return _in_parts(found, found.parts), found.parts


def training_plan(found: Study, made: Parts | str) -> tuple[CapturePlan, Parts | None]:
    """For calls whose backward pass follows; `made` may be the reason why there is none."""
    total = found.launches.get("", 0)
    if isinstance(made, str):
        obstacles = (*found.obstacles, made)
        return CapturePlan("eager", launches=total, obstacles=obstacles, mode="training"), None
    if made.paths == ("",):
        return CapturePlan("whole", launches=total, captured_launches=total, mode="training"), made
    plan = _in_parts(found, made)
    left_out = tuple(f"{path or 'the model'}: {why}" for path, why in made.left_out.items())
    return CapturePlan(
        plan.how,
        plan.modules,
        total,
        plan.captured_launches,
        obstacles=(*found.obstacles, *left_out),
        mode="training",
    ), made


def _in_parts(found: Study, parts: Parts) -> CapturePlan:
    return CapturePlan(
        "modules",
        modules=parts.paths,
        launches=found.launches.get("", 0),
        captured_launches=sum(found.launches.get(path, 0) for path in parts.paths),
        obstacles=found.obstacles,
    )
