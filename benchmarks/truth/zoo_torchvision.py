"""torchvision's families: classification, segmentation, detection, video, optical flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torchvision
from torchvision.models import detection
from zoo import Built, Case, Inputs, built, tensors_in

BATCH, CLASSES, BOXES = 2, 4, 3
CLASSIFIERS = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_v2_t",
    "vgg11",
    "vit_b_32",
)
SIZES = {"inception_v3": 299, "maxvit_t": 224, "vit_b_32": 224}  # the others take 64
SEGMENTERS = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")
DETECTORS = (
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn",
    "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)
VIDEO = {
    "mc3_18": (4, 64),
    "mvit_v2_s": (16, 224),
    "r2plus1d_18": (4, 64),
    "r3d_18": (4, 64),
    "swin3d_t": (4, 64),
}
FLOW = ("raft_small",)


def cases() -> Iterator[Case]:
    makers: dict[str, Callable[[str], Built]] = {
        **dict.fromkeys(CLASSIFIERS, classifier),
        **dict.fromkeys(SEGMENTERS, segmenter),
        **dict.fromkeys(DETECTORS, detector),
        **dict.fromkeys(VIDEO, video),
        **dict.fromkeys(FLOW, flow),
    }
    for name, maker in makers.items():
        kind = {"classifier": "image", "segmenter": "segmentation", "detector": "detection"}
        word = kind.get(maker.__name__, "video")
        yield Case(name, "torchvision", word, name, partial(maker, name))


def classifier(name: str) -> Built:
    size = SIZES.get(name, 64)
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES)
    return classified(model, (3, size, size))


def video(name: str) -> Built:
    frames, size = VIDEO[name]
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES)
    return classified(model, (3, frames, size, size))


def classified(model: torch.nn.Module, shape: tuple[int, ...]) -> Built:
    def fresh() -> Inputs:
        return {"x": torch.rand(BATCH, *shape)}

    def with_loss() -> Inputs:
        return {**fresh(), "labels": torch.randint(0, CLASSES, (BATCH,))}

    return built(model, fresh, fresh_with_loss=with_loss, loss=cross_entropy)


def cross_entropy(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    """Over every head that the model has in training."""
    heads = tensors_in(model(inputs["x"]))
    labels = inputs["labels"]
    return torch.stack([torch.nn.functional.cross_entropy(each, labels) for each in heads]).sum()


def segmenter(name: str) -> Built:
    no_weights: dict[str, Any] = {"weights": None, "weights_backbone": None}
    model = torchvision.models.get_model(name, num_classes=CLASSES, **no_weights)

    def fresh() -> Inputs:
        return {"x": torch.rand(BATCH, 3, 96, 96)}

    def with_loss() -> Inputs:
        return {**fresh(), "labels": torch.randint(0, CLASSES, (BATCH, 96, 96))}

    return built(model, fresh, fresh_with_loss=with_loss, loss=cross_entropy)


class Detector(torch.nn.Module):
    """A detector, which takes its images as a list, and in training the boxes beside them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: list[torch.Tensor], targets: Any = None) -> Any:
        return self.model(images, targets)


def detector(name: str) -> Built:
    make = getattr(detection, name)
    is_fixed = name.startswith("ssd")
    sizes = {} if is_fixed else {"min_size": 96, "max_size": 128}
    model = Detector(make(weights=None, weights_backbone=None, num_classes=CLASSES, **sizes))

    def fresh() -> Inputs:
        return {"images": [torch.rand(3, 96, 96) for _ in range(BATCH)]}

    def with_loss() -> Inputs:
        points = name.startswith("keypoint")
        return {**fresh(), "targets": [objects(points=points) for _ in range(BATCH)]}

    return built(model, fresh, fresh_with_loss=with_loss, loss=summed)


def objects(*, points: bool) -> dict[str, torch.Tensor]:
    """Boxes with their labels, masks and, where asked for, key points."""
    corners = torch.rand(BOXES, 2) * 40
    found = {
        "boxes": torch.cat([corners, corners + 16 + torch.rand(BOXES, 2) * 30], dim=1),
        "labels": torch.randint(1, 2 if points else CLASSES, (BOXES,)),
        "masks": torch.randint(0, 2, (BOXES, 96, 96), dtype=torch.uint8),
    }
    if points:
        inside = corners[:, None] + torch.rand(BOXES, 17, 2) * 16
        found["keypoints"] = torch.cat([inside, torch.ones(BOXES, 17, 1)], dim=2)
    return found


def summed(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    return torch.stack(list(model(**inputs).values())).sum()


def flow(name: str) -> Built:
    model = torchvision.models.get_model(name, weights=None)

    def fresh() -> Inputs:
        pair = {"image1": torch.rand(1, 3, 128, 128), "image2": torch.rand(1, 3, 128, 128)}
        return {**pair, "num_flow_updates": 2}

    return built(model, fresh)
