"""Inputs that only go together as they were given: found, kept, and said; everything else still varies."""

from __future__ import annotations

import random
from itertools import count

import pytest
import torch

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record import Session, prepare
from graphdoctor.record.place import place
from graphdoctor.record.variation import FIXED, with_fixed_inputs
from graphdoctor.target import from_object
from graphdoctor.values.errors import UserCodeError

IDS = torch.tensor([[1, 7, 7, 3], [4, 5, 7, 2]])
FEATURES = torch.randn(3, 4)


def insert(ids: torch.Tensor, features: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As models of images and text do it: one row of features for each mark in the text."""
    marks = ids == 7
    if int(marks.sum()) != len(features):
        raise ValueError("Image features and image tokens do not match")
    places = marks.unsqueeze(-1).expand(-1, -1, features.shape[1])
    empty = torch.zeros(*ids.shape, features.shape[1], device=ids.device)
    return empty.masked_scatter(places, features) + bias


def prepared(step: object, *inputs: torch.Tensor, fixed: bool = False) -> Session:
    with EmulatedDevice() as device:
        target = place(from_object(step, *inputs), device)
        return prepare(with_fixed_inputs(target) if fixed else target, device, iterations=3)


def varies(session: Session, at: int) -> bool:
    first, second = (batch.args[at] for batch in session.batches[:2])
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return not torch.equal(first, second)


def test_ids_that_must_fit_are_the_given_ones_in_other_places() -> None:
    session = prepared(insert, IDS, FEATURES, torch.randn(4))
    assert [varies(session, at) for at in range(3)] == [True, True, True]
    for batch in session.batches:
        ids = batch.args[0]
        assert isinstance(ids, torch.Tensor)
        assert torch.equal(ids.flatten().sort().values, IDS.flatten().sort().values)
    note = session.target.notes[-1]
    assert note.startswith("inputs[0]: the given numbers in other places only")
    assert "ValueError: Image features and image tokens do not match" in note
    assert session.target.tried_on == "on fresh inputs"


def test_only_what_must_fit_is_kept_and_the_report_says_which_and_why() -> None:
    session = prepared(insert, torch.tensor([[1, 7, 7, 2]]), torch.randn(2, 4), torch.randn(4))
    assert [varies(session, at) for at in range(3)] == [False, True, True]
    assert session.target.tried_on == "on fresh inputs with `inputs[0]` as given"
    note = session.target.notes[-1]
    assert note.startswith("inputs[0]: kept as given")
    assert "ValueError: Image features and image tokens do not match" in note
    assert not session.target.has_fixed_inputs


def test_values_that_make_results_infinite_are_kept() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.log(x.sum() - 26.8) + y

    session = prepared(step, torch.tensor([9.0, 9.0, 8.9, 0.0]), torch.randn(4))
    assert "not finite" in session.target.notes[-1]
    assert (varies(session, 0), varies(session, 1)) == (False, True)


def test_state_is_as_if_there_had_been_no_trial() -> None:
    model = torch.nn.BatchNorm1d(4)

    def step(ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return model(insert(ids, features, features[0]).flatten(0, 1))

    prepared(step, IDS, FEATURES)
    assert int(model.num_batches_tracked) == 2  # the warm-ups, and no throw-away run


def test_where_nothing_may_vary_the_verdict_is_on_the_given_inputs_only() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x.sum() - 10).abs() < 1e-6)
        return x * 2

    given = torch.tensor([1.0, 2.0, 3.0, 4.5]) - 0.125
    report = graphdoctor.analyze(step, given, device="emulated", strategies=())
    assert report.verdict == "safe"
    assert report.reason.endswith("matched eager, on the given inputs only.")


def test_the_user_can_say_that_inputs_are_fixed() -> None:
    report = graphdoctor.analyze(
        lambda x: x * 2, torch.randn(4), device="emulated", strategies=(), vary_inputs=False
    )
    assert FIXED in report.target.notes
    assert report.reason.endswith("on the given inputs only.")
    assert not varies(prepared(lambda x: x * 2, torch.randn(4), fixed=True), 0)


def test_a_step_that_fails_on_the_given_inputs_is_still_the_users_error() -> None:
    with pytest.raises(graphdoctor.values.errors.UserCodeError, match="do not match"):
        prepared(insert, IDS, torch.randn(2, 4), torch.randn(4))


def test_a_model_of_images_and_text_is_analysed_to_the_end() -> None:
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model", "image_size": 16, "patch_size": 8, **small
        },
        text_config={"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 100, **small},
        image_token_index=99,
        vision_feature_layer=-1,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config).eval()
    ids = torch.randint(3, 90, (2, 12))
    ids[:, 1:5] = 99
    report = graphdoctor.analyze(
        model,
        input_ids=ids,
        pixel_values=torch.randn(2, 3, 16, 16),
        device="emulated",
        strategies=(),
        iterations=2,
    )
    assert report.findings
    assert any(
        "input_ids: the given numbers in other places" in note for note in report.target.notes
    )


def test_what_fails_for_a_later_draw_only_is_kept_as_given() -> None:
    given = [1, 2, 3, 2, 1]
    others = []

    def step(sizes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if sizes.tolist() != given:
            others.append(1)
            if len(others) > 2:
                raise ValueError("3 rows come last")
        return x * 2

    def make() -> object:
        return step, (torch.tensor(given), torch.randn(6, device="cuda"))

    report = graphdoctor.analyze(make, device="emulated", strategies=())
    (note,) = report.target.notes
    assert note.startswith("inputs[0]: kept as given") and "3 rows come last" in note
    assert report.reason.endswith("on fresh inputs with `inputs[0]` as given.")


def test_a_step_that_fails_from_some_call_on_is_reported_as_far_as_it_goes() -> None:
    calls = []

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 5:
            raise ValueError("enough")
        return x * 2

    report = graphdoctor.analyze(step, torch.randn(6), device="emulated", strategies=())
    assert report.verdict == "unknown" and "ValueError: enough" in report.reason


@pytest.mark.parametrize("draws", [False, True])
def test_a_step_that_fails_now_and_then_is_not_laid_to_its_inputs(draws: bool) -> None:
    calls = count(1)

    def flaky(x: torch.Tensor) -> torch.Tensor:
        fails = random.random() < 0.5 if draws else next(calls) == 3
        if fails and x.numel():
            raise RuntimeError("the network is down")
        return x * 2

    random.seed(56)  # the first that fails is the third: warmed up, and tried with other values
    with pytest.raises(UserCodeError) as failed:
        prepared(flaky, torch.randn(4))
    assert "fails now and then on the same inputs" in str(failed.value)
    assert "the network is down" in str(failed.value)
