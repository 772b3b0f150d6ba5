"""Detection models of torchvision at their normal size of image, and SAM at its own: batch 1, random weights."""

from __future__ import annotations

from typing import Any

import torch

Described = tuple[torch.nn.Module, Any]
HEIGHT, WIDTH = 800, 1333  # what their transform makes of most images


def fasterrcnn() -> Described:
    return _detector("fasterrcnn_resnet50_fpn", HEIGHT, WIDTH)


def maskrcnn() -> Described:
    return _detector("maskrcnn_resnet50_fpn", HEIGHT, WIDTH)


def keypointrcnn() -> Described:
    return _detector("keypointrcnn_resnet50_fpn", HEIGHT, WIDTH)


def retinanet() -> Described:
    return _detector("retinanet_resnet50_fpn", HEIGHT, WIDTH)


def ssd() -> Described:
    return _detector("ssd300_vgg16", 300, 300)


def sam() -> Described:
    """SAM's base model (12 layers, hidden 768), one point on an image of 1024 x 1024."""
    from transformers import SamConfig, SamModel

    torch.manual_seed(0)
    model = SamModel(SamConfig())
    inputs = {
        "pixel_values": torch.rand(1, 3, 1024, 1024).cuda(),
        "input_points": torch.tensor([[[[450.0, 600.0]]]]).cuda(),
    }
    return model.cuda().eval(), inputs


def _detector(name: str, height: int, width: int) -> Described:
    from torchvision.models import detection

    torch.manual_seed(0)
    model = getattr(detection, name)(weights=None, weights_backbone=None)
    return model.cuda().eval(), ([torch.rand(3, height, width).cuda()],)
