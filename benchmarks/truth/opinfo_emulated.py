"""torch's op_db on the emulated CUDA device -> the verdict on every entry, and where rules and machine disagree.

    python benchmarks/truth/opinfo_emulated.py
    python benchmarks/truth/opinfo_emulated.py --only linalg.inv,index_put --samples 100 --each

Each sample is the step of a target: recorded, diagnosed, captured, replayed on fresh values and judged.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

from op_db import Sample, draw, dtype_of, entry_name, load_op_db, spread

ITERATIONS = 2
CAPABILITY = (9, 0)  # of the emulated device


def main() -> None:
    options = _options()
    started = time.monotonic()
    entries = load_op_db(CAPABILITY)
    wanted = set(options.only.split(",")) if options.only else None
    chosen = [i for i, e in enumerate(entries) if not wanted or {entry_name(e), e.name} & wanted]
    outcomes: list[Outcome] = []
    work = [(index, options.samples, options.backward) for index in chosen]
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for found in pool.imap_unordered(_outcomes, work, chunksize=4):
            outcomes += found
    took_s = time.monotonic() - started
    if options.each:
        for outcome in outcomes:
            print(outcome)
    print_table(outcomes, len(chosen), took_s)


def _outcomes(work: tuple[int, int, bool]) -> list[Outcome]:
    index, samples, backward = work
    return list(examined(load_op_db(CAPABILITY)[index], samples, backward=backward))


def examined(entry: Any, most: int, *, backward: bool = False) -> Iterator[Outcome]:
    """The outcomes of at most so many samples of an entry, of those with gradients if so asked."""
    import torch

    from graphdoctor.device.emulated import EmulatedDevice

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # what op_db makes torch warn of
    name = entry_name(entry)
    dtype = dtype_of(entry, needs_grad=backward)
    if dtype is None or (backward and not entry.supports_autograd):
        yield Outcome(name, 0, "not run by torch", "no dtype for it on CUDA")
        return
    with EmulatedDevice() as device:
        try:
            draws = [
                draw(entry, dtype, seed, needs_grad=backward) for seed in range(1, ITERATIONS + 2)
            ]
        except Exception as error:
            yield Outcome(name, 0, "crash", f"drawing its samples: {_first_line(error)}")
            return
        for sample in spread(len(draws[0]), most):
            same = [drawn[sample] for drawn in draws if len(drawn) == len(draws[0])]
            yield replace(_judged(same, device), entry=name, sample=sample)


def _judged(draws: Sequence[Sample], device: Any) -> Outcome:
    from graphdoctor.device.emulated import EmulationLimit
    from graphdoctor.values.errors import GraphDoctorError

    try:
        return _analyzed(draws, device)
    except EmulationLimit as limit:
        return Outcome("", 0, "limit", _first_line(limit))
    except Exception as error:
        if (refusal := _refused_by_torch(draws[0])) is not None:
            return Outcome("", 0, "not run by torch", refusal)
        if "setStorage" in str(error):
            return Outcome("", 0, "limit", "looks beyond the memory that its input covers")
        kind = "" if isinstance(error, GraphDoctorError) else f"{type(error).__name__}: "
        return Outcome("", 0, "crash", kind + _first_line(error))


def _analyzed(draws: Sequence[Sample], device: Any) -> Outcome:
    from graphdoctor.diagnose.diagnose import diagnose
    from graphdoctor.diagnose.verdict import judge
    from graphdoctor.graphs.cause import Refusal
    from graphdoctor.graphs.whole_step import capture_whole_step
    from graphdoctor.proof.verify import verify_whole_step
    from graphdoctor.record import prepare, record
    from graphdoctor.record.place import place
    from graphdoctor.target import from_object
    from graphdoctor.values.captures import WHOLE_STEP

    target = place(from_object(lambda: _step_of(draws)), device)
    try:
        session = prepare(target, device, iterations=ITERATIONS)
        recording = record(session, progress=lambda doing: None)
        diagnosis = diagnose(recording)
        session.start.restore()
        made = capture_whole_step(session.target)
        if isinstance(made, Refusal):
            outcome = made.outcome(WHOLE_STEP)
        else:
            outcome = made.outcome(verify_whole_step(target, made, session.batches, exact=True))
    finally:
        target.close()
    ops = [op for iteration in recording.captured for op in iteration.ops]
    doubts = [op.fallback for op in ops if op.fallback is not None]
    if "nothing to capture" in (outcome.reason or ""):
        return Outcome("", 0, "nothing to capture", "it makes views, or memory without values")
    verdict, reason = judge(diagnosis.findings, (), (outcome,), doubts)
    rules = tuple(finding.rule for finding in diagnosis.findings)
    refused = outcome.status == "refused"
    return Outcome("", 0, verdict, reason, rules, refused, bool(doubts))


def _step_of(draws: Sequence[Sample]) -> Any:
    """A target whose inputs are a sample's tensors; each call for inputs gives the next draw's."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    flat, spec = tree_flatten(draws[0].arguments)
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    asked = count()

    def step(*tensors: torch.Tensor) -> Any:
        leaves = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = tensor
        given, args, kwargs = tree_unflatten(leaves, spec)
        result = draws[0].function(given, *args, **kwargs)
        return result, _gradients(result, tensors)

    def inputs() -> Any:
        drawn = tree_flatten(draws[next(asked) % len(draws)].arguments)[0]
        same = len(drawn) == len(flat) and all(_alike(drawn[i], flat[i]) for i in places)
        return tuple(_copy((drawn if same else flat)[i]) for i in places)

    return SimpleNamespace(step=step, inputs=inputs)


def _gradients(result: Any, inputs: Sequence[Any]) -> Any:
    """Of what a result depends on; nothing where no gradients were asked for."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    made = [each for each in tree_flatten(result)[0] if getattr(each, "requires_grad", False)]
    if not leaves or not made:
        return ()
    ones = [torch.ones_like(each) for each in made]
    return torch.autograd.grad(made, leaves, ones, allow_unused=True)


def _copy(tensor: Any) -> Any:
    """With all the memory that a view looks at, since some entries look beyond the view."""
    return _copied(tensor.detach()).requires_grad_(tensor.requires_grad)


def _copied(tensor: Any) -> Any:
    if "strided" not in str(tensor.layout) or not tensor.numel():
        return tensor.clone()
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.as_strided((length,), (1,), 0).clone()
    return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _alike(one: Any, other: Any) -> bool:
    made = (one.shape, one.dtype, one.layout) if hasattr(one, "shape") else None
    return made == (other.shape, other.dtype, other.layout)


def _refused_by_torch(sample: Sample) -> str | None:
    """The error that the call alone ends in, if it does: op_db asks for what no CPU kernel has."""
    try:
        sample.call()
    except Exception as error:
        return _first_line(error)
    return None


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=6, help="of an entry, at most")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="names of entries, separated by commas")
    parser.add_argument("--backward", action="store_true", help="compute gradients too")
    parser.add_argument("--each", action="store_true", help="print every sample's outcome")
    return parser.parse_args()


VERDICTS = ("safe", "nothing to capture", "unsafe", "unknown", "limit", "not run by torch", "crash")


@dataclass(frozen=True)
class Outcome:
    """What came of one sample. `refused` and `hazard`: what the machine and what the rules say."""

    entry: str
    sample: int
    verdict: str
    reason: str
    rules: tuple[str, ...] = ()
    refused: bool = False
    fallback: bool = False

    @property
    def disagreement(self) -> str | None:
        """Where the rules and the emulated machine say different things about a capture."""
        hazard = any(rule.startswith("GD1") for rule in self.rules)
        if self.verdict not in ("safe", "unsafe", "unknown") or hazard == self.refused:
            return None
        return "missed by the rules" if self.refused else "a false alarm of the rules"


def print_table(outcomes: Sequence[Outcome], entries: int, took_s: float) -> None:
    import torch

    today = datetime.date.today().isoformat()
    print(
        f"op_db of torch {torch.__version__}, {today}: {entries} entries, {len(outcomes)} samples,"
    )
    print(f"in {took_s:.0f} s\n")
    worst: dict[str, str] = {}
    for outcome in outcomes:
        before = worst.get(outcome.entry, VERDICTS[0])
        worst[outcome.entry] = max(before, outcome.verdict, key=VERDICTS.index)
    of_entries, of_samples = Counter(worst.values()), Counter(o.verdict for o in outcomes)
    print(f"{'verdict':<18}{'entries':>9}{'samples':>9}   (an entry counts as its worst sample)")
    for verdict in VERDICTS:
        print(f"{verdict:<18}{of_entries[verdict]:>9}{of_samples[verdict]:>9}")
    fallbacks = {o.entry for o in outcomes if o.fallback}
    print(f"\nentries with an operator that fell back: {len(fallbacks)}")
    for verdict in VERDICTS[3:]:
        _print_reasons(verdict, [o for o in outcomes if o.verdict == verdict])
    for kind in ("missed by the rules", "a false alarm of the rules"):
        _print_reasons(kind, [o for o in outcomes if o.disagreement == kind])
    wrong = [o for o in outcomes if o.verdict == "unsafe" and not o.refused and not o.rules]
    _print_reasons("replays differ without a finding", wrong)


def _print_reasons(title: str, outcomes: Sequence[Outcome]) -> None:
    if not outcomes:
        return
    reasons: dict[str, dict[str, None]] = defaultdict(dict)
    for outcome in outcomes:
        reasons[outcome.reason][f"{outcome.entry}[{outcome.sample}]"] = None
    print(f"\n{title}:")
    for reason, where in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(list(where)[:4])
        print(f"  {len(where):>4} x {reason}\n         {shown}")


if __name__ == "__main__":
    main()
