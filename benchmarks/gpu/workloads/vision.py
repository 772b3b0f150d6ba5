"""torchvision's models at the sizes of the published figures; weights are random.

The detector is called as its authors call it, with a list of images; its backbone alone is what a
graph can hold. Training steps use AdamW, fused and capturable.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

IMAGE = (3, 800, 1216)  # what Mask R-CNN makes of a photograph


def _mask_rcnn() -> nn.Module:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    return maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda().eval()


def mask_rcnn_backbone():
    return _mask_rcnn().backbone, (torch.randn(1, *IMAGE, device="cuda"),)


def mask_rcnn():
    return _mask_rcnn(), ([torch.rand(*IMAGE, device="cuda")],)


def resnet50(batch_size: int = 128):
    from torchvision.models import resnet50

    model = resnet50(weights=None).cuda().eval()
    return model, (torch.randn(batch_size, 3, 224, 224, device="cuda"),)


def _training(model: nn.Module, *, autocast: bool, batch_size: int) -> SimpleNamespace:
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-4, device="cuda"), fused=True, capturable=True
    )

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast, cache_enabled=False):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (
        torch.randn(batch_size, 3, 224, 224, device="cuda"),
        torch.randint(1000, (batch_size,), device="cuda"),
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})


def swin_t_fp32(batch_size: int = 32):
    from torchvision.models import swin_t

    return _training(swin_t(weights=None), autocast=False, batch_size=batch_size)


def swin_t_autocast(batch_size: int = 32):
    from torchvision.models import swin_t

    return _training(swin_t(weights=None), autocast=True, batch_size=batch_size)


def swin_b_fp32(batch_size: int = 32):
    from torchvision.models import swin_b

    return _training(swin_b(weights=None), autocast=False, batch_size=batch_size)


def swin_b_autocast(batch_size: int = 32):
    from torchvision.models import swin_b

    return _training(swin_b(weights=None), autocast=True, batch_size=batch_size)


def convnext_l_fp32(batch_size: int = 16):
    from torchvision.models import convnext_large

    return _training(convnext_large(weights=None), autocast=False, batch_size=batch_size)


def convnext_l_autocast(batch_size: int = 16):
    from torchvision.models import convnext_large

    return _training(convnext_large(weights=None), autocast=True, batch_size=batch_size)
