"""The quick guards of captured models: they say "the same" only where the thorough ones do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import graphdoctor
from graphdoctor.captured.call_form import form_of
from graphdoctor.captured.forward_graph import _loader
from graphdoctor.captured.signature import signature
from graphdoctor.captured.state_watch import StateWatch
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.target.state import dict_versions
from graphdoctor.target.state.dict_versions import DictVersions
from tests.support.drop_in_models import Scaled, assert_equal, on_device, rand, replayed
from tests.support.emulated import device as device


class _Watched:
    """Dictionaries with their versions, and how often they had to be compared."""

    def __init__(self, count: int) -> None:
        self.live: list[dict[str, object]] = [{"a": 1, "b": 2.0} for _ in range(count)]
        self.saved = [dict(each) for each in self.live]
        self.comparisons = 0
        self.versions = DictVersions(self.live, self._compare)

    def _compare(self) -> bool:
        self.comparisons += 1
        return self.live == self.saved


@pytest.fixture(params=[3, 100], ids=["few", "many"])
def watched(request: pytest.FixtureRequest) -> _Watched:
    """Few dictionaries are asked one by one, many all at once in C++."""
    if request.param > dict_versions._MANY:
        __import__("torch._dynamo.guards")
    return _Watched(request.param)


class TestDictVersions:
    def test_many_are_asked_in_one_call(self, watched: _Watched) -> None:
        assert (watched.versions._check is not None) == (len(watched.live) > dict_versions._MANY)

    def test_nothing_is_compared_while_nothing_is_written(self, watched: _Watched) -> None:
        assert all(watched.versions.are_same() for _ in range(5))
        assert watched.comparisons == 0

    @pytest.mark.parametrize(
        "write",
        [
            lambda d: d.update(a=7),
            lambda d: d.pop("a"),
            lambda d: d.__setitem__("new", 1),
            lambda d: d.clear(),
            lambda d: d.__setitem__("b", 3.0),
        ],
    )
    def test_every_write_is_seen_until_it_is_taken_back(
        self, watched: _Watched, write: Callable[[dict[str, object]], object]
    ) -> None:
        last = watched.live[-1]
        write(last)
        assert not watched.versions.are_same() and not watched.versions.are_same()
        last.clear()
        last.update(watched.saved[-1])
        assert watched.versions.are_same()
        compared = watched.comparisons
        assert watched.versions.are_same() and watched.comparisons == compared
        write(last)
        assert not watched.versions.are_same()

    def test_guards_are_made_anew_when_writes_have_ceased(self, watched: _Watched) -> None:
        watched.live[0].update(a=9)
        watched.live[0].update(a=1)
        before = watched.versions._check
        for _ in range(dict_versions._CALM + 5):
            assert watched.versions.are_same()
        assert watched.comparisons == 1
        assert (watched.versions._check is before) == (before is None)
        watched.live[0]["a"] = 5
        assert not watched.versions.are_same()

    def test_without_versions_each_look_compares(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dict_versions, "_version_function", lambda: None)
        watched = _Watched(3)
        assert watched.versions.are_same() and watched.comparisons == 1
        watched.live[0]["a"] = 5
        assert not watched.versions.are_same() and watched.comparisons == 2

    def test_a_version_that_misses_writes_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch._C._dynamo.guards, "dict_version", lambda each: 1)
        assert dict_versions._version_function() is None

    def test_capture_under_the_emulator_imports_no_dynamo(self) -> None:
        code = (
            "import sys, torch, graphdoctor\n"
            "from graphdoctor.device.emulated import EmulatedDevice\n"
            "from graphdoctor.captured.state_watch import StateWatch\n"
            "model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(99)])\n"
            "with EmulatedDevice():\n"
            "    assert StateWatch({'model': model}).is_same()\n"
            "assert 'torch._dynamo' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


CHANGES: dict[str, Callable[[Any], object]] = {
    "training": lambda model: model[3].train(),
    "attribute": lambda model: setattr(model[70], "in_features", 9),
    "parameter": lambda model: setattr(model[5], "bias", nn.Parameter(torch.zeros(1))),
    "no parameter": lambda model: setattr(model[5], "bias", None),
    "data": lambda model: setattr(model[98].weight, "data", torch.zeros(1, 1)),
    "buffer": lambda model: model[0].register_buffer("more", torch.zeros(1)),
    "hook": lambda model: model[9].register_forward_hook(lambda *a: None),
    "pre-hook": lambda model: model[9].register_forward_pre_hook(lambda *a: None),
    "submodule": lambda model: setattr(model, "4", nn.Linear(1, 1)),
    "new submodule": lambda model: model[4].add_module("inner", nn.ReLU()),
    "past setattr": lambda model: model[4].__dict__.update(training=True),
    "type": lambda model: setattr(model[4], "out_features", True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_large_model_that_changed_is_found_out(name: str) -> None:
    __import__("torch._dynamo.guards")
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(99)]).eval()
    watch = StateWatch({"model": model})
    assert watch._dicts._check is not None and watch.is_same()
    CHANGES[name](model)
    for _ in range(2):
        # Constants of torch's own modules count by value only: True is 1 there.
        assert watch.is_same() == (name == "type")


shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
tensors = st.builds(
    lambda shape, dtype, flip, made: made(torch.zeros(shape, dtype=dtype)).permute(
        list(range(len(shape)))[:: -1 if flip else 1]
    ),
    shapes,
    st.sampled_from([torch.float32, torch.float64, torch.int64]),
    st.booleans(),
    st.sampled_from([lambda t: t, lambda t: t[..., None].expand(*t.shape, 2)[..., 0]]),
)
constants = st.sampled_from([None, True, False, 0, 1, 1.0, 0.0, -0.0, float("nan"), "a", ""])
arguments = st.lists(st.one_of(tensors, constants), max_size=4).map(tuple)
named = st.dictionaries(st.sampled_from("xyz"), st.one_of(tensors, constants), max_size=2)


@settings(max_examples=300)
@given(args=arguments, kwargs=named, others=arguments, other_kwargs=named, same=st.booleans())
def test_a_call_of_the_same_form_has_the_same_key(
    args: Any, kwargs: Any, others: Any, other_kwargs: Any, same: bool
) -> None:
    if same:
        others, other_kwargs = _alike(args), dict(zip(kwargs, _alike(kwargs.values()), strict=True))
    form = form_of(args, kwargs)
    if form is None:
        return
    found = form.tensors_of(others, other_kwargs)
    key, expected = signature(others, other_kwargs)
    if found is None:
        assert not same
    else:
        assert key == signature(args, kwargs)[0]
        assert list(map(id, found)) == list(map(id, expected))


def _alike(values: Any) -> tuple[Any, ...]:
    """Other tensors of the same make."""
    return tuple(
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) if torch.is_tensor(v) else v
        for v in values
    )


class TestForms:
    @pytest.mark.parametrize(
        "args",
        [
            ([torch.zeros(1)],),
            (torch.zeros(1, requires_grad=True),),
            (torch.zeros(1).to_sparse(), object()),
            (1, 2),
            (),
        ],
    )
    def test_what_has_none(self, args: Any) -> None:
        assert form_of(args, {}) is None

    def test_one_tensor_twice_is_no_form_and_of_none(self) -> None:
        x, y = torch.zeros(2), torch.zeros(2)
        assert form_of((x, x), {}) is None
        form = form_of((x, y), {})
        assert form is not None
        assert form.tensors_of((y, x), {}) is not None and form.tensors_of((x, x), {}) is None

    def test_emulated_devices_are_told_apart(self, device: EmulatedDevice) -> None:
        form = form_of((torch.zeros(2, device="cuda"),), {})
        assert form is not None
        assert form.tensors_of((torch.zeros(2, device="cuda"),), {}) is not None
        assert form.tensors_of((torch.zeros(2),), {}) is None

    def test_a_tensor_that_wants_gradients_is_no_known_form(self) -> None:
        form = form_of((torch.zeros(2),), {})
        wanting = torch.zeros(2, requires_grad=True)
        assert form is not None and form.tensors_of((wanting,), {}) is None

    def test_gradients_wanted_after_the_same_call_without(self, device: EmulatedDevice) -> None:
        model: Any = on_device(Scaled()).requires_grad_(False)
        fast = graphdoctor.capture(model, rand(5, 4))
        wanting = rand(5, 4).requires_grad_()
        for _ in range(2):
            assert_equal(fast, model, wanting)
            assert fast(wanting).requires_grad
        assert replayed(fast) == 2

    def test_several_forms_of_one_key(self, device: EmulatedDevice) -> None:
        model = on_device(Scaled())
        fast: Any = graphdoctor.capture(model, rand(5, 4))
        for _ in range(3):
            assert_equal(fast, model, rand(5, 4))
            with torch.inference_mode():
                given = rand(5, 4)
                assert torch.equal(fast(given), model(given))
        assert replayed(fast) == 6 and not fast.fallbacks

    def test_a_released_model_is_eager(self, device: EmulatedDevice) -> None:
        model = on_device(Scaled())
        fast: Any = graphdoctor.capture(model, rand(5, 4))
        assert_equal(fast, model, rand(5, 4))
        fast.release()
        assert_equal(fast, model, rand(5, 4))
        assert fast.fallbacks["it was released"] == 1


def test_inputs_of_several_dtypes_are_all_copied() -> None:
    kinds = [torch.float32, torch.int64, torch.float32, torch.bool, torch.int64]
    static = [torch.zeros(3, dtype=kind) for kind in kinds]
    fresh = [torch.arange(place, place + 3).to(kind) for place, kind in enumerate(kinds)]
    _loader(static)(tuple(fresh))
    assert all(map(torch.equal, static, fresh))
