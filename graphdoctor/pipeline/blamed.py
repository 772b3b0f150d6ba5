"""Finds the smallest script that shows why a target's replays are wrong."""

from __future__ import annotations

from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.static_inputs import InputMismatch
from graphdoctor.graphs.whole_step import capture_from_start
from graphdoctor.measure.audit.graph_audit import audit
from graphdoctor.pipeline.setting import Progress, open_setting, put_back
from graphdoctor.record import prepare
from graphdoctor.record.place import place
from graphdoctor.target import resolve
from graphdoctor.values.options import AnalyzeOptions


def blame_target(spec: str, options: AnalyzeOptions, progress: Progress) -> str | None:
    """The smallest script whose replay differs from eager as the step's does; None if none shows it.

    The step is captured and goes on eagerly, with a verified replay after each call: what the calls changed in
    Python, or put elsewhere, is what the replay does not know of.
    """
    with open_setting(options, progress) as setting:
        setting.begin("finding the model")
        target = resolve(spec, mode=options.mode, inputs=options.inputs)
        with put_back(target, setting.device.table):
            setting.begin("looking for the smallest script")
            session = prepare(
                place(target, setting.device), setting.device, iterations=options.iterations
            )
            with audit(verify=1, blame=True, roots=session.target.roots) as audited:
                made = capture_from_start(session)
                if isinstance(made, Refusal):
                    return None
                try:
                    for batch in session.batches_for_proof():
                        session.call(batch)
                        made.call(batch)
                except InputMismatch:
                    pass
                finally:
                    made.release()
            return audited.blame()
