"""Faults in engines with a paged cache and in PPO are found with their lines; engines without one are silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphdoctor
from graphdoctor.device.emulated import entered
from graphdoctor.reporters.audit import AuditFault, faults_of
from tests.measure.audit.engines import GraphRunner, ModelRunner, Ppo
from tests.support.emulated import one_thread  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_device")


def prompt(count: int) -> torch.Tensor:
    return torch.arange(count, device="cuda")


def sglang() -> GraphRunner:
    runner = GraphRunner()
    runner.capture()
    return runner


def observation(value: float) -> torch.Tensor:
    return torch.full((4, 3), value, device="cuda")


# What the engines do right.


def vllm_decodes_and_gets_weights() -> None:
    runner = ModelRunner()
    tokens = prompt(3)
    for position in range(4):
        tokens = runner.execute_model(tokens, position).argmax(-1)
        weights = {name: each * 1.01 for name, each in runner.model.state_dict().items()}
        runner.load_weights(weights)


def vllm_captures_again_after_it_woke_up() -> None:
    runner = ModelRunner()
    for position in range(4):
        if position == 2:
            runner.wake_up()
            runner.capture_model()
        runner.execute_model(prompt(4), position).clone()


def sglang_decodes_and_gets_weights() -> None:
    runner = sglang()
    logprobs = []
    for length in range(1, 5):
        logits = runner.replay(prompt(1 + length % 4), length)
        logprobs.append(logits.log_softmax(-1).max(-1).values)
        runner.update_weights([layer.weight * 1.01 for layer in runner.weights])
    torch.cat(logprobs).mean().item()


def sglang_pauses_its_cache() -> None:
    runner = sglang()
    runner.replay(prompt(2), 1)
    saved = [each.cpu() for each in runner.pool.keys]
    for each, value in zip(runner.pool.keys, saved, strict=True):
        each.zero_()
        each.copy_(value)
    runner.replay(prompt(2), 2)


def ppo_syncs_its_policy() -> None:
    ppo = Ppo()
    for update in range(3):
        observations = [observation(update + step / 4) for step in range(3)]
        actions = [ppo.step(each).clone() for each in observations]
        ppo.learn(torch.cat(observations), torch.cat(actions))
        ppo.policy.load_state_dict(ppo.learner.state_dict())


HEALTHY = (
    vllm_decodes_and_gets_weights, vllm_captures_again_after_it_woke_up,
    sglang_decodes_and_gets_weights, sglang_pauses_its_cache, ppo_syncs_its_policy,
)  # fmt: skip


# One fault each. Marks name the lines that the report has to have.


def vllm_repacks_weights() -> None:
    runner = ModelRunner()
    runner.execute_model(prompt(4), 0)
    runner.repack_weights()
    runner.execute_model(prompt(4), 1)


def vllm_wakes_up() -> None:
    runner = ModelRunner()
    runner.execute_model(prompt(4), 0)
    runner.wake_up()
    runner.execute_model(prompt(4), 1)


def vllm_keeps_logits() -> None:
    runner, kept = ModelRunner(), []
    for position in range(4):
        kept.append(runner.execute_model(prompt(4), position))  # <- Kept


def vllm_gets_new_buffers() -> None:
    runner = ModelRunner()
    old = runner.lengths
    runner.execute_model(prompt(4), 0)
    runner.lengths = torch.full((4,), 2, device="cuda")
    runner.execute_model(prompt(4) + 1, 1)
    assert old.sum() == 4


def vllm_changes_its_temperature() -> None:
    runner = ModelRunner()
    runner.execute_model(prompt(4), 0)
    runner.model.temperature = 1.0  # <- Changed
    runner.execute_model(prompt(4), 1)


def sglang_gives_its_cache_back() -> None:
    runner = sglang()
    runner.replay(prompt(2), 1)
    runner.pool.allocate()
    runner.replay(prompt(2), 2)


def sglang_compares_two_steps() -> None:
    runner = sglang()
    with torch.no_grad():
        before = runner.replay(prompt(2), 1)
        after = runner.replay(prompt(2), 2)
        (after - before).abs().max()  # <- Read


def sglang_keeps_logits() -> None:
    runner, logits = sglang(), {}
    for length in range(1, 5):
        logits[length] = runner.replay(prompt(2), length)  # <- Kept


def sglang_does_not_copy_tokens() -> None:
    runner = sglang()
    for _ in range(2):
        runner.replay_prepared(prompt(2) + 1)  # <- Passed


def sglang_changes_its_penalty() -> None:
    runner = sglang()
    runner.replay(prompt(2), 1)
    runner.penalty = 1.5
    runner.replay(prompt(2), 2)


def ppo_assigns_its_policy() -> None:
    ppo = Ppo()
    ppo.step(observation(0.5))
    ppo.policy.load_state_dict(ppo.learner.state_dict(), assign=True)  # <- Changed
    ppo.step(observation(0.75))


def ppo_keeps_actions() -> None:
    ppo, actions = Ppo(), []
    for step in range(4):
        actions.append(ppo.step(observation(step / 4)))  # <- Kept


def ppo_does_not_copy_observations() -> None:
    ppo = Ppo()
    for step in range(1, 3):
        ppo.step_in_place(observation(step / 4))  # <- Passed


def ppo_anneals_its_noise() -> None:
    ppo = Ppo()
    for _ in range(3):
        ppo.step(observation(0.5))
        ppo.noise *= 0.9


FAULTS: dict[Callable[[], None], tuple[str, str]] = {
    vllm_repacks_weights: ("stale-tensor-rebound", "qkv.weight"),
    vllm_wakes_up: ("stale-tensor-freed", "kv_cache"),
    vllm_keeps_logits: ("overwritten-output", "kept"),
    vllm_gets_new_buffers: ("uncopied-input", "args[3]"),
    vllm_changes_its_temperature: ("frozen-value", "self.temperature"),
    sglang_gives_its_cache_back: ("stale-tensor-freed", "pool.keys[0]"),
    sglang_compares_two_steps: ("overwritten-output", ""),
    sglang_keeps_logits: ("overwritten-output", "logits"),
    sglang_does_not_copy_tokens: ("uncopied-input", "self.tokens"),
    sglang_changes_its_penalty: ("frozen-value", "self.penalty"),
    ppo_assigns_its_policy: ("stale-tensor-rebound", "policy.0.weight"),
    ppo_keeps_actions: ("overwritten-output", "actions"),
    ppo_does_not_copy_observations: ("uncopied-input", "self.observation"),
    ppo_anneals_its_noise: ("frozen-value", "self.noise"),
}


# Their replays read the wrong memory or number, and compute something else than eager.
WRONG = (
    vllm_repacks_weights, vllm_wakes_up, vllm_gets_new_buffers, vllm_changes_its_temperature,
    sglang_gives_its_cache_back, sglang_changes_its_penalty, ppo_assigns_its_policy, ppo_anneals_its_noise,
)  # fmt: skip


def found_by(program: Callable[[], None], **options: Any) -> tuple[AuditFault, ...]:
    torch.manual_seed(0)
    with torch.no_grad(), graphdoctor.audit(**options) as audit:
        program()
    return faults_of(audit.report())


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__name__)
def test_a_planted_fault_is_found_with_its_name_and_lines(
    program: Callable[[], None],
) -> None:
    # No fixture of pytest's: an audit walks through what the variables here lead to.
    if program is sglang_compares_two_steps and entered() is None:
        pytest.skip("only the emulated device shows each operator that reads")
    rule, name = FAULTS[program]
    found = found_by(program, verify=1)
    assert {each.rule for each in found} - {"wrong-replay"} == {rule}, found
    assert (program in WRONG) == any(each.rule == "wrong-replay" for each in found), found
    fault = next(each for each in found if name in each.message)
    places = {line.label: line.location for line in fault.lines}
    assert places["Captured"] is not None and places["Replayed"] is not None
    code, first = program.__code__, program.__code__.co_firstlineno
    lines = Path(code.co_filename).read_text().splitlines()
    for number in range(first, first + 10):
        label = lines[number].partition("# <- ")[2]
        if not lines[number]:
            break
        place = places[label] if label else None
        assert place is None or (place.file, place.line) == (code.co_filename, number + 1), label


@pytest.mark.parametrize("options", [{}, {"verify": 1}], ids=["audited", "verified"])
@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_an_engine_without_a_fault_is_silent(
    program: Callable[[], None], options: dict[str, Any]
) -> None:
    assert found_by(program, **options) == ()
