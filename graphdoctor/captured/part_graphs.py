"""A session and some of its model's modules -> graphs of them, verified in calls of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphdoctor.captured.context import Context
from graphdoctor.captured.parts import Parts
from graphdoctor.graphs.modules import Choices, GraphedModules, graph_modules
from graphdoctor.partition.regions import FEWEST_LAUNCHES
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record import Session
from graphdoctor.strategies.built_step import BuiltStep
from graphdoctor.strategies.modules import BuiltModules


def graph_parts(
    session: Session,
    modules: Mapping[str, torch.nn.Module],
    launches: Mapping[str, int],
    *,
    context: Context,
) -> Parts | str:
    """Graph the modules that are worth it, or what is inside them; else say why there are none."""

    def run() -> None:
        session.call(session.inputs(0))

    def is_worth(path: str) -> bool:
        return launches.get(path, 0) >= FEWEST_LAUNCHES

    worth = {path: module for path, module in modules.items() if is_worth(path)}
    if not worth:
        return (
            f"no safe module in it has {FEWEST_LAUNCHES} launches or more, so none is worth a graph"
        )
    session.start.restore()
    graphed = graph_modules(
        worth, run, restore=session.start.restore, choices=Choices(is_worth=is_worth)
    )
    if not graphed.paths:
        graphed.release()
        path, why = next(iter(graphed.left_out.items()))
        return f"no module in it could be graphed; {path or 'the model'}: {why}"
    if wrong := _not_right(session, graphed):
        graphed.release()
        return wrong
    session.start.restore()
    model: Any = session.target.roots["model"]
    return Parts(model, graphed, context)


def _not_right(session: Session, graphed: GraphedModules) -> str:
    batches = session.batches_for_proof()
    step = BuiltStep(BuiltModules(session, graphed), session)
    session.start.restore()
    step.load(session.inputs(0))
    step.replay()
    session.start.restore()
    verification = verify_whole_step(
        session.target, step, batches, exact=session.device.kind == "emulated", now=session.start
    )
    if verification.status == "verified":
        return ""
    return f"graphs of modules were not shown to be right ({verification.status}): {verification.reason}"
