"""Speed-ups that others published for the workloads of benchmarks/gpu/workloads, each with where it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One figure over eager. `case` and `strategy` name the cell of ours that it is set beside."""

    what: str
    machine: str
    figure: str
    case: str
    strategy: str


_GELU_1 = "sample_models/gelu.py"
_GELU_32 = "sample_models/gelu.py:large_batch"
_K80 = "K80"
_VISION = "benchmarks/gpu/workloads/vision.py"

PUBLISHED = (
    Published("GELU chain, (1, 3, 224, 224), graph", _K80, "1.09x", _GELU_1, "whole"),
    Published("GELU chain, (32, 3, 224, 224), graph", _K80, "0.99x", _GELU_32, "whole"),
    Published("the same on 1 image, scripted", _K80, "1.82x", _GELU_1, "script"),
    Published("the same on 32 images, scripted", _K80, "3.11x", _GELU_32, "script"),
    Published("the same on 1 image, scripted, graph", _K80, "1.99x", _GELU_1, "script-graph"),
    Published("the same on 32 images, scripted, graph", _K80, "3.53x", _GELU_32, "script-graph"),
    Published(
        "Linear-Dropout training step, batch 32",
        "not named",
        "2.36x",
        "benchmarks/gpu/workloads/linear_dropout.py",
        "whole",
    ),
    Published(
        "Linear-Dropout training step, N=640",
        "none published",
        "",
        "sample_models/linear_dropout.py",
        "whole",
    ),
    Published(
        "Mask R-CNN's backbone, batch 1 (31 ms to 6 ms)",
        "not named",
        "5.2x",
        f"{_VISION}:mask_rcnn_backbone",
        "whole",
    ),
    Published("Mask R-CNN around it", "not named", "1.7x", f"{_VISION}:mask_rcnn", "modules"),
    Published(
        "BERT, masked positions gathered",
        "none published",
        "",
        "benchmarks/gpu/workloads/bert.py:gathered",
        "modules",
    ),
    Published(
        "BERT, static mask",
        "none published",
        "",
        "benchmarks/gpu/workloads/bert.py:static",
        "whole",
    ),
    *(
        Published(f"{what}, {precision}", "torch 2.0", figure, f"{_VISION}:{name}", "compile")
        for what, figure, model in (
            ("Swin-T training (11:46 to 12:17 min, precision not named)", "0.96x", "swin_t"),
            ("Swin-B training (19:33 to 13:49 min, precision not named)", "1.41x", "swin_b"),
            (
                "ConvNeXt-L training (16:57 to 15:56 min, precision not named)",
                "1.06x",
                "convnext_l",
            ),
        )
        for precision, name in (("fp32", f"{model}_fp32"), ("autocast", f"{model}_autocast"))
    ),
)
