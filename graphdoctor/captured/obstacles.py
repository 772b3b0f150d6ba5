"""Says in sentences why a model's forward pass cannot be one graph in the model's place."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.strategies.evidence import Studied
from graphdoctor.values.host_events import DiffersByState, ItemTaken
from graphdoctor.values.locations import bracketed
from graphdoctor.values.recording import Iteration, Recording


def branching_paths(recording: Recording) -> set[str]:
    """The modules around whose operators a later call differs, or takes an item that a replay does not."""
    ops = recording.captured[-1].ops
    found: set[str] = set()
    for event in recording.host:
        if isinstance(event, (DiffersByState, ItemTaken)):
            found.update(op.module for op in ops[max(0, event.op_index - 1) : event.op_index + 1])
    return found


def is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def obstacles(studied: Studied) -> Iterator[str]:
    """Why the step cannot be one graph, in sentences."""
    recording, findings = studied.recording, studied.diagnosis.findings
    for finding in findings:
        if finding.effect != "replay-is-slow":
            yield f"{finding.rule} {finding.name}{bracketed(finding.location)}: {finding.message}"
    if not any(op.is_cuda for iteration in recording.captured for op in iteration.ops):
        yield "the forward pass runs nothing on the GPU, so there is nothing to capture"
    elif not studied.plan.whole and not findings:
        yield "the recorded iterations cannot be captured as one graph"
    changed = {change.path: change for each in recording.captured for change in each.changes}
    for path, change in changed.items():
        yield (
            f"each call changes {path} in Python (from {change.before} to {change.after}), "
            "which a replay would not do"
        )
    yield from _strangers(recording)
    if any("inputs" in written_kinds(iteration) for iteration in recording.captured):
        yield "the forward pass writes into its inputs, and a replay would write into copies"


def _strangers(recording: Recording) -> Iterator[str]:
    """Memory that nobody can watch: a cache of a library's may be freed while the graph reads it."""
    seen = {
        external.name: external
        for iteration in recording.captured
        for external in iteration.externals
        if external.origin in ("unknown", "previous-iteration")
        and external.device.startswith("cuda")
    }
    for external in seen.values():
        yield (
            f"it reads a tensor on the GPU that is neither an input nor reached from the model"
            f"{bracketed(external.location)}, so nothing would tell when it is replaced"
        )


def written_kinds(iteration: Iteration) -> set[str]:
    """ "inputs" and "state", where operators write into such memory."""
    origins = {external.storage: external.origin for external in iteration.externals}
    kinds = {
        origins[storage] for op in iteration.ops for storage in op.writes if storage in origins
    }
    return {"inputs" if kind == "input" else "state" for kind in kinds}
