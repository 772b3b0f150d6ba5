"""Replays some modules of a model, in calls of the model that are verified."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from graphdoctor.graphs.calls.tally import BUSY
from graphdoctor.graphs.guards import Modes
from graphdoctor.graphs.modules import Choices, GraphedModules, graph_modules
from graphdoctor.partition.regions import FEWEST_LAUNCHES
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record import Session
from graphdoctor.strategies.modules import BuiltModules
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.strategies.whole import BuiltStep, built_again

# The step is warm: only the stream of the capture is new, for which libraries make workspaces in the first run.
_WARM_UPS = 1


class Parts:
    """The model with graphs for some of its modules, which are put in place for each call only.

    So the model is its author's whenever nobody calls it through here: copied, saved, called itself.
    The modules watch their inputs and all that they read themselves.
    """

    def __init__(self, model: torch.nn.Module, graphed: GraphedModules, context: Modes) -> None:
        self.fallen_back: Counter[str] = Counter()
        self._model = model
        self._graphed = graphed
        self._context = context
        self._lock = threading.Lock()
        # Calls that verified the graphs are none of the user's.
        self._earlier = graphed.replays, graphed.fallbacks

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        if not self._context.is_same():
            return self._fall_back(self._context.difference(), args, kwargs)
        if not self._lock.acquire(blocking=False):
            return self._fall_back(BUSY, args, kwargs)
        try:
            with self._graphed.installed():
                return self._model(*args, **kwargs)
        finally:
            self._lock.release()

    def _fall_back(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        self.fallen_back[why] += 1
        return self._model(*args, **kwargs)

    @property
    def paths(self) -> tuple[str, ...]:
        """The graphed modules; "" is the model itself."""
        return self._graphed.paths

    @property
    def left_out(self) -> dict[str, str]:
        """Why modules that were tried are not graphed, by path."""
        return self._graphed.left_out

    @property
    def replays(self) -> int:
        """How many calls of modules a graph has served."""
        return self._graphed.replays - self._earlier[0]

    @property
    def fallbacks(self) -> Counter[str]:
        """How many calls ran eagerly, by the reason."""
        return self.fallen_back + (self._graphed.fallbacks - self._earlier[1])

    def release(self) -> None:
        """Give the graphs' memory back; they cannot be used any more."""
        self._graphed.release()


def graph_parts(
    session: Session,
    modules: Mapping[str, torch.nn.Module],
    launches: Mapping[str, int],
    *,
    context: Modes,
    ran: EagerRuns | None,
) -> Parts | str:
    """Graph the modules that are worth it, or what is inside them; else say why there are none.

    `ran` are eager runs that the replays can be compared with.
    """

    def run() -> None:
        session.call(session.inputs(0))

    def is_worth(path: str) -> bool:
        return launches.get(path, 0) >= FEWEST_LAUNCHES

    worth = {path: module for path, module in modules.items() if is_worth(path)}
    if not worth:
        return (
            f"no safe module in it has {FEWEST_LAUNCHES} launches or more, so none is worth a graph"
        )

    def build() -> BuiltModules:
        session.start.restore()
        graphed = graph_modules(
            worth,
            run,
            restore=session.start.restore,
            choices=Choices(is_worth=is_worth, warm_ups=_WARM_UPS),
        )
        if not graphed.paths:
            graphed.release()
            path, why = next(iter(graphed.left_out.items()))
            raise CannotBuild(f"no module in it could be graphed; {path or 'the model'}: {why}")
        return BuiltModules(session, graphed)

    try:
        built = build()
    except CannotBuild as why:
        return str(why)
    verification = verify_whole_step(
        session.target,
        BuiltStep(built, session),
        session.batches_for_proof(),
        exact=session.device.kind == "emulated",
        now=session.start,
        ran=ran,
        meeting=session.device.meeting,
        recapture=partial(built_again, session, build),
    )
    if verification.status != "verified":
        built.release()
        return f"graphs of modules were not shown to be right ({verification.status}): {verification.reason}"
    session.start.restore()
    model: Any = session.target.roots["model"]
    return Parts(model, built.made, context)
