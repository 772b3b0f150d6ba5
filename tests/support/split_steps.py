"""Training steps to run in pieces, and what must be as before afterwards."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch.nn.utils import clip_grad_norm_

from graphdoctor.graphs.split.breakable import BuiltSplit
from graphdoctor.graphs.split.glue import GlueCall
from graphdoctor.strategies.split_step import SplitStep
from graphdoctor.target import named_tensors, named_values
from graphdoctor.values.captures import Verification
from tests.support.trying import Tried

SPLIT = SplitStep()
Body = Callable[[SimpleNamespace, torch.Tensor], object]


def training(body: Body, **choices: object) -> Callable[[], object]:
    """A target whose step runs `body` on a model with two optimizers, a schedule and a scaler.

    The body uses what it wants of them; only those are state of the step.
    """

    def target() -> object:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
        ).cuda()
        made = {
            "model": model,
            "sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "adam": torch.optim.Adam(model.parameters(), lr=0.01),
            "scaler": torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2),
            "count": 0,
            "last": 0.0,
            **choices,
        }
        names = {"model", *body.__code__.co_names}
        ns = SimpleNamespace(**{name: made[name] for name in made if name in names})
        if "schedule" in names:
            ns.schedule = torch.optim.lr_scheduler.ExponentialLR(ns.sgd, 0.9)
        if "average" in names:
            ns.average = torch.optim.swa_utils.AveragedModel(model)
        if "plateau" in names:
            # No loss is worse than the best by so much: whether it falls, which follows random data, decides nothing.
            ns.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                ns.sgd, patience=0, factor=0.5, threshold=-1e9, threshold_mode="abs"
            )

        def step(data: torch.Tensor) -> object:
            return body(ns, data)

        return SimpleNamespace(
            step=step, inputs=(torch.randn(4, 8, device="cuda"),), state=dict(vars(ns))
        )

    return target


def verdict_and_pieces(found: Tried) -> tuple[Verification, list[str]]:
    assert SPLIT.reason_against(found.known) == ""
    built = SPLIT.build(found.session, found.known)
    result = found.verified(built)
    pieces = pieces_of(built)
    built.release()
    return result, pieces


def pieces_of(built: BuiltSplit) -> list[str]:
    pieces = built._capture.pieces
    return [piece.call.name if isinstance(piece, GlueCall) else "graph" for piece in pieces]


def backward(ns: SimpleNamespace, data: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = ns.model(data).square().mean()
    loss.backward()
    return loss


State = tuple[dict[str, torch.Tensor], dict[str, object]]


def state_of(found: Tried) -> State:
    roots = found.session.target.roots
    # A copy that hangs on autograd would keep its nodes, and their stream, alive.
    tensors = {path: tensor.detach().clone() for path, tensor in named_tensors(roots).items()}
    return tensors, dict(named_values(roots))


def assert_unchanged(found: Tried, before: State) -> None:
    tensors, values = state_of(found)
    assert values == before[1]
    assert tensors.keys() == before[0].keys()
    assert all(torch.equal(tensors[path], before[0][path]) for path in tensors)


def scaled(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.sgd.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = ns.model(data).float().square().mean()
    ns.scaler.scale(loss).backward()
    ns.scaler.unscale_(ns.sgd)
    norm = clip_grad_norm_(ns.model.parameters(), 0.5)
    ns.scaler.step(ns.sgd)
    ns.scaler.update()
    ns.schedule.step()
    return loss.detach(), norm
