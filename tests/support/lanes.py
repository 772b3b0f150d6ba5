"""A step of many operators on two lanes, as `estimate.step_lanes` gives it, without a recording."""

from __future__ import annotations

from graphdoctor.values.lanes import CapturedWork, EagerOperator, Placement, StepLanes

_NAMES = ("aten.mm.default", "aten.add.Tensor", "aten.view.default", "aten.mul.Tensor")
_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn", "mlp.up", "mlp.down", "norm")
HOST_US, DEVICE_US = 8.0, 3.0


def many_lanes(
    operators: int, *, layers: int = 48, file: str = "/repo/project/model.py"
) -> StepLanes:
    """Every seventh operator in no graph; every hundredth waits for the device."""
    modules = [f"model.layers.{layer}.{part}" for layer in range(layers) for part in _PARTS]
    eager, now = [], 0.0
    for number in range(operators):
        kernels = int(number % 4 != 2)
        waited = 6.0 if number % 100 == 99 else 0.0
        at = Placement(now, HOST_US, waited, (now + HOST_US + 4.0) * kernels, DEVICE_US * kernels)
        module = number * len(modules) // operators
        eager.append(
            EagerOperator(
                number % 4, module, 0, 10 + number % 90, 0 if number % 7 else -1, kernels, at
            )
        )
        now += HOST_US + waited
    return StepLanes(
        gpu="NVIDIA H100 SXM",
        names=_NAMES,
        modules=tuple(modules),
        files=(file,),
        graphs=("region A",),
        eager=tuple(eager),
        captured=(
            CapturedWork("copy", -1, Placement(0.0, 5.0, 0.0, 7.0, 1.5)),
            CapturedWork("graph", 0, Placement(5.0, 7.0, 0.0, 15.0, DEVICE_US * operators)),
            *(
                CapturedWork("operator", one, Placement(12.0 + HOST_US * n, HOST_US, 0.0, 0.0, 0.0))
                for n, one in enumerate(range(0, operators, 7))
            ),
        ),
    )
