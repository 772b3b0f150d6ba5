"""A variant -> where its cure fails, if it does: a sentence, or ""."""

from __future__ import annotations

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record.place import place
from graphdoctor.target import from_object
from tests.rules.advice.variant import Example, Variant
from tests.support.diagnosing import diagnosed, judged

_STEPS = 3


def failure_of(variant: Variant) -> str:
    fixes = [one.fix for one in diagnosed(variant.before).findings if one.rule == variant.rule]
    if not fixes:
        return f"{variant.rule} is not found"
    if not any(variant.says in fix for fix in fixes):
        return f"the cure is {fixes}"
    diagnosis, outcome = judged(variant.after)
    left = [f"{one.rule}: {one.message}" for one in diagnosis.findings]
    if left:
        return f"after the cure: {left}"
    if outcome.verification is None or outcome.verification.status != "verified":
        return f"after the cure, the replay: {outcome}"
    return _difference(variant) if variant.same else ""


def _difference(variant: Variant) -> str:
    """Whether both steps return other values, run in eager on the same inputs."""
    with EmulatedDevice() as device:
        before, after = (_results(each, device) for each in (variant.before, variant.after))
    assert all(before), "a step that returns no tensor cannot be compared"
    for step, (old, new) in enumerate(zip(before, after, strict=True)):
        try:
            torch.testing.assert_close(new, old, check_dtype=False)
        except AssertionError as error:
            return f"step {step} returns other values: {error}"
    return ""


def _results(example: Example, device: EmulatedDevice) -> list[list[torch.Tensor]]:
    """The tensors that each step returns; all steps get copies of the first one's inputs."""
    torch.manual_seed(0)
    target = place(from_object(example), device)
    try:
        inputs = target.fresh_inputs()
        results = []
        for _ in range(_STEPS):
            args, kwargs = torch.utils._pytree.tree_map_only(
                torch.Tensor, torch.clone, (inputs.args, inputs.kwargs)
            )
            results.append(_tensors(target.step(*args, **kwargs)))
        return results
    finally:
        target.close()


def _tensors(result: object) -> list[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(result)
    return [leaf.detach().cpu().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
