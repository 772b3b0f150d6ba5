"""The objects a step uses, before and after it -> what the host changed in them."""

from __future__ import annotations

from collections.abc import Mapping

from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.target.state.snapshot import named_state
from graphdoctor.values.recording import StateChange


class HostState:
    """Numbers, lengths and the identity of tensors at one moment."""

    def __init__(self, roots: Mapping[str, object], table: StorageTable) -> None:
        named, values = named_state(roots)
        self.values = {path: repr(value) for path, value in values.items()}
        self.storages = {path: table.info(tensor).number for path, tensor in named.items()}
        # Gradients are made anew in most steps, and that is no hazard: the step itself makes them.
        self.tensors = {
            path: number for path, number in self.storages.items() if not path.endswith(".grad")
        }

    def changes(self, after: HostState) -> tuple[StateChange, ...]:
        """What differs, by path."""
        found = []
        for path, value in self.values.items():
            now = after.values.get(path, "absent")
            if now != value:
                kind = "grown" if path.startswith("len(") else "value"
                found.append(StateChange(path=path, before=value, after=now, kind=kind))  # type: ignore[arg-type]
        for path, number in self.tensors.items():
            now_number = after.tensors.get(path)
            if now_number is not None and now_number != number:
                found.append(
                    StateChange(
                        path=path,
                        before=f"storage {number}",
                        after=f"storage {now_number}",
                        kind="rebound-tensor",
                    )
                )
        return tuple(found)
