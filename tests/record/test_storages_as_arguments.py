"""An operator that is given a storage, as cuDNN's RNNs are: it is named by its size and never read."""

from __future__ import annotations

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record.operators import OperatorObserver
from graphdoctor.record.scopes import Scopes


def test_a_storage_is_not_read_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: object, place: object) -> object:
        raise AssertionError("the storage was read")

    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", read)
    with EmulatedDevice() as device:
        storage = torch.zeros(1024, device="cuda").untyped_storage()
        observer = OperatorObserver(
            device.table, Scopes({}), iteration=1, named={}, device_of=device.device_name_of
        )
        with device.observed_by(observer):
            torch.empty(0, device="cuda").set_(storage, 0, (8,), (1,))
    texts = [str(arg) for op in observer.ops for arg in op.args]
    assert any("storage of 4096 bytes" in text for text in texts)
