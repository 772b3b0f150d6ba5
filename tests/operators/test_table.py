"""The operator table: well formed, read without torch, obeyed by rules and the emulated device, and mergeable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch

from graphdoctor.operators import CONDITIONS, OperatorFact, evidence_words, fact_about, load_table
from graphdoctor.operators.table import Table
from graphdoctor.values.recording import Op, TensorUse

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
HAZARDS = [fact for fact in load_table().operators if fact.effect != "captured"]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TRUTH))
    import build_operator_table

    return build_operator_table


def op(name: str, *args: object, **kwargs: object) -> Op:
    return Op(
        index=0, name=name, args=args, kwargs=tuple(kwargs.items()), outputs=(), writes=(), tags=(),
        phase="forward", module="", device="cuda:0",
    )  # fmt: skip


def use(*shape: int, dtype: str = "float32", device: str = "cuda:0") -> TensorUse:
    return TensorUse(1, shape, (), 0, dtype, device, 4)


def other(*shape: int) -> TensorUse:
    return msgspec.structs.replace(use(*shape), storage=2)


def test_every_fact_names_a_known_condition_and_says_why_and_from_where() -> None:
    assert HAZARDS
    for fact in HAZARDS:
        assert fact.when in CONDITIONS
        assert fact.why
        assert fact.source or fact.evidence == "measured"
        shown = fact.captured if fact.effect == "freezes" else fact.refused and not fact.captured
        assert (fact.evidence == "measured") <= bool(shown)


def test_every_condition_is_used() -> None:
    assert {fact.when for fact in load_table().operators} == set(CONDITIONS)


def test_the_facts_are_sorted_and_no_two_say_the_same() -> None:
    keys = [(f.operator, f.effect, f.when) for f in load_table().operators]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("fact", HAZARDS, ids=lambda fact: f"{fact.operator}-{fact.when}")
def test_every_hazard_is_about_an_operator_that_torch_has(fact: OperatorFact) -> None:
    _, name, *overload = fact.operator.split(".")
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    assert not overload or overload[0] in packet.overloads()


def test_the_table_is_read_without_torch_and_only_when_asked() -> None:
    code = (
        "import sys\n"
        "from graphdoctor.operators import load_table\n"
        "assert not load_table.cache_info().currsize\n"
        "assert load_table().operators and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_file_is_written_as_the_merging_script_writes_it(build: ModuleType) -> None:
    assert build.TABLE.read_bytes() == build.written(load_table())


MASK, INDEX = use(3, dtype="bool"), use(3, dtype="int64")
HOST_MASK = use(3, dtype="bool", device="cpu")
ON_HOST = use(3, dtype="int64", device="cpu")
COALESCED = msgspec.structs.replace(use(3, 3), sparse="coalesced")
LOOSE = msgspec.structs.replace(use(3, 3), sparse="uncoalesced")
FAKE = (*[use(3)] * 7, 0.01, -8, 7, 0)
PER_CHANNEL = "aten.fake_quantize_per_channel_affine_cachemask.default"


@pytest.mark.parametrize(
    ("when", "call", "holds"),
    [
        ("no-range", op("aten.histc.default", use(9)), True),
        ("no-range", op("aten.histc.default", use(9), 10, -1, 1), False),
        ("no-output-size", op("aten.repeat_interleave.Tensor", use(3)), True),
        ("no-output-size", op("aten.repeat_interleave.Tensor", use(3), output_size=7), False),
        ("mask-index", op("aten.index.Tensor", use(3), (MASK,)), True),
        ("mask-index", op("aten.index.Tensor", use(3), (INDEX,)), False),
        ("mask-index", op("aten.index_put_.default", use(3), (MASK,), use()), True),
        ("mask-index", op("aten.index_put_.default", use(3), (MASK,), use(device="cpu")), False),
        ("host-index", op("aten.index.Tensor", use(3), (ON_HOST,)), True),
        ("host-index", op("aten.index.Tensor", use(3), (INDEX,)), False),
        ("host-index", op("aten.index.Tensor", use(3), (HOST_MASK,)), False),
        ("host-mask", op("aten.index.Tensor", use(3), (HOST_MASK,)), True),
        ("host-mask", op("aten.index.Tensor", use(3), (ON_HOST,)), False),
        ("host-mask", op("aten.index.Tensor", use(3), (MASK,)), False),
        ("uncoalesced", op("aten.mm.default", LOOSE, use(3, 3)), True),
        ("uncoalesced", op("aten.mm.default", COALESCED, use(3, 3)), False),
        ("sparse-product", op("aten.mm.default", COALESCED, COALESCED), True),
        ("sparse-product", op("aten.mm.default", COALESCED, use(3, 3)), False),
        ("per-channel", op("aten._fused_moving_avg_obs_fq_helper.default", *FAKE, True), True),
        ("per-channel", op("aten._fused_moving_avg_obs_fq_helper.default", *FAKE), False),
        ("integer-zero-point", op(PER_CHANNEL, use(3), use(3), INDEX), True),
        ("integer-zero-point", op(PER_CHANNEL, use(3), use(3), use(3)), False),
        ("sorter", op("aten.searchsorted.Tensor", use(3), use(3), sorter=INDEX), True),
        ("sorter", op("aten.searchsorted.Tensor", use(3), use(3)), False),
        ("batched", op("aten.cholesky_solve.default", use(2, 3, 3), use(2, 3, 3)), True),
        ("batched", op("aten.cholesky_solve.default", use(3, 3), use(3, 3)), False),
        ("batched", op("aten.cholesky_solve.default", use(0, 3, 3), use(0, 3, 3)), False),
        ("not-empty", op("aten._linalg_svd.default", use(3, 3)), True),
        ("not-empty", op("aten._linalg_svd.default", use(0, 3)), False),
        ("other-of-equal-shape", op("aten.equal.default", use(3), other(3)), True),
        ("other-of-equal-shape", op("aten.equal.default", use(3), use(3)), False),
        ("other-of-equal-shape", op("aten.equal.default", use(3), other()), False),
        ("not-square", op("aten.linalg_lu_factor_ex.default", use(3, 5)), True),
        ("not-square", op("aten.linalg_lu_factor_ex.default", use(2, 5, 5)), False),
        ("long-dimension", op("aten.mode.default", use(3000)), True),
        ("long-dimension", op("aten.mode.default", use(3000, 5)), False),
        ("long-dimension", op("aten.mode.default", use(3000, 5), 0), True),
        ("long-dimension", op("aten.mode.default", use()), False),
        ("host-index", op("aten.index_put_.default", use(3), (INDEX,), use(device="cpu")), True),
        ("value-on-device", op("aten.masked_fill.Tensor", use(3), MASK, use()), True),
        ("value-on-device", op("aten.masked_fill.Tensor", use(3), MASK, use(device="cpu")), False),
        ("check-errors", op("aten.linalg_inv_ex.default", use(3, 3), check_errors=True), True),
        ("check-errors", op("aten.linalg_inv_ex.default", use(3, 3)), False),
        ("check-lengths", op("aten.segment_reduce.default", use(3), "max", lengths=INDEX), True),
        ("check-lengths", op("aten.segment_reduce.default", use(3), "max", offsets=INDEX), False),
        (
            "check-lengths",
            op("aten.segment_reduce.default", use(3), "max", lengths=INDEX, unsafe=True),
            False,
        ),
        ("not-bfloat16", op("aten._grouped_mm.default", use(3, 3), use(3, 3)), True),
        ("many-test-elements", op("aten.isin.Tensor_Tensor", use(5), use(50)), True),
        ("many-test-elements", op("aten.isin.Tensor_Tensor", use(5), use(2)), False),
    ],
)
def test_conditions_tell_calls_apart(when: str, call: Op, holds: bool) -> None:
    assert CONDITIONS[when].holds(call) is holds


def test_a_fact_is_about_its_operator_and_one_of_its_overloads() -> None:
    one = OperatorFact("aten.normal.Tensor_Tensor", "waits")
    every = OperatorFact("aten.normal", "waits")
    call, unlike = op("aten.normal.Tensor_Tensor"), op("aten.normal.Tensor_float")
    assert (one.holds(call), one.holds(unlike)) == (True, False)
    assert (every.holds(call), every.holds(unlike)) == (True, True)
    assert not every.holds(op("aten.normal_.default"))


def test_a_call_without_a_fact_has_none() -> None:
    assert fact_about(op("aten.add.Tensor", use(3), use(3))) is None
    assert fact_about(op("flex_attention", use(3))) is None
    assert fact_about(op("aten.nonzero.default", use(3)), "waits") is None
    assert fact_about(op("aten.nonzero.default", use(3)), "sizes-result") is not None


def test_words_follow_the_evidence() -> None:
    words = {
        evidence: evidence_words(OperatorFact("aten.x", "waits", evidence=evidence))
        for evidence in ("source", "documentation", "unconfirmed")
    }
    assert words["source"] == "read in torch's source, not measured"
    assert words["documentation"] == "documented, not measured"
    assert words["unconfirmed"] == "not confirmed"


def lines(*, captured: bool, failing: str | None = None) -> list[dict[str, object]]:
    tensor = {"d": "float32", "s": [5], "c": 1}
    sample: dict[str, object] = {
        "opinfo": "x", "mode": "forward", "sample": 0, "arguments": "f32[5]", "captures": captured,
        "aten": [["aten.histc.default", [tensor], {}, 1], ["aten.neg.default", [tensor], {}, 0]],
    }  # fmt: skip
    if not captured:
        sample["error"] = "CUDA error: operation not permitted when stream is capturing"
        sample["failing"] = [failing, [tensor], {}] if failing else None
    return [{"run": {"gpu": "G", "torch": "2.11.0", "date": "2026-01-01"}}, sample]


def hand_written() -> Table:
    fact = OperatorFact("aten.histc", "waits", "no-range", "reads", "Some.cu: histc", "source")
    return Table(runs=(), operators=(fact,))


def test_a_measured_refusal_confirms_a_fact(build: ModuleType) -> None:
    table, against = build.merged(
        hand_written(), lines(captured=False, failing="aten.histc.default")
    )
    (fact,) = table.operators
    assert (fact.evidence, fact.refused, fact.captured) == ("measured", 1, 0)
    assert fact.source == "Some.cu: histc"
    assert table.runs[0].gpu == "G"
    assert not any(vars(against).values())


def test_a_captured_call_contradicts_a_fact_and_takes_its_evidence_away(build: ModuleType) -> None:
    table, against = build.merged(hand_written(), lines(captured=True))
    facts = {fact.operator: fact for fact in table.operators}
    assert facts["aten.histc"].evidence == "unconfirmed"
    assert len(against.contradictions) == 1
    assert facts["aten.neg.default"].effect == "captured"
    assert facts["aten.neg.default"].kernels is None  # the nodes were two operators' together


def test_a_refusal_that_nobody_wrote_of_becomes_a_fact(build: ModuleType) -> None:
    table, _ = build.merged(hand_written(), lines(captured=False, failing="aten.neg.default"))
    fact = next(fact for fact in table.operators if fact.operator == "aten.neg.default")
    assert (fact.effect, fact.evidence, fact.refused) == ("refused", "measured", 1)


def test_an_operator_that_is_both_refused_and_captured_is_left_to_a_person(
    build: ModuleType,
) -> None:
    both = [*lines(captured=True), *lines(captured=False, failing="aten.neg.default")]
    table, against = build.merged(hand_written(), both)
    assert "aten.neg.default" not in {fact.operator for fact in table.operators}
    assert len(against.mixed) == 1


def test_merging_twice_changes_nothing(build: ModuleType) -> None:
    measured = lines(captured=False, failing="aten.neg.default")
    once, _ = build.merged(hand_written(), measured)
    again, _ = build.merged(once, measured)
    assert build.written(again) == build.written(once)
    assert msgspec.json.decode(build.written(once), type=Table) == once


def test_the_capture_script_and_the_merging_script_understand_each_other(
    build: ModuleType, tmp_path: Path
) -> None:
    """The script for a GPU, run on the emulated device."""
    output = tmp_path / "measured.jsonl.gz"
    command = [
        sys.executable, str(TRUTH / "opinfo_capture.py"), str(output), "--device", "emulated",
        "--only", "add,bincount", "--samples", "2", "--workers", "1", "--modes", "forward",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    measured = build.read_lines(output)
    examined = [line["opinfo"] for line in measured if "captures" in line]
    assert sorted(examined) == ["add", "add", "bincount", "bincount"]
    table, against = build.merged(load_table(), measured)
    facts = {fact.operator: fact for fact in table.operators}
    assert facts["aten.bincount"].refused == 2
    assert facts["aten.add.Tensor"].captured == 2
    assert not against.contradictions
    json.loads(build.written(table))
