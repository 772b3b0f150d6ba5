"""Attention with dropout, with a mask that hides nothing and without one, from one seed -> which kernels draw alike.

python benchmarks/truth/attention_dropout.py --json FILE     # on a GPU

Models may leave such a mask out in eager and keep it while they are captured; CUDA then drops other elements
wherever the two take different kernels, or one that draws by the mask.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

# By torch.nn.attention.SDPBackend.
BACKENDS = ("math", "flash", "efficient", "cudnn", "overrideable")
SHAPES = ((2, 2, 16, 16), (2, 12, 128, 64))  # batch, heads, length, width of a head
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SEED = 5


def drawn(
    q: torch.Tensor, mask: torch.Tensor | None, *, is_causal: bool
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Which of the values attention keeps, and how: with ones as values, and nothing to prefer."""
    torch.manual_seed(SEED)
    given = [each.clone().requires_grad_() for each in (q, q, torch.ones_like(q))]
    choice = torch._fused_sdp_choice(*given, attn_mask=mask, dropout_p=0.1, is_causal=is_causal)
    out = F.scaled_dot_product_attention(*given, attn_mask=mask, dropout_p=0.1, is_causal=is_causal)
    out.float().square().sum().backward()
    offset = int(torch.cuda.get_rng_state()[8:16].view(torch.int64))
    gradient = given[2].grad
    assert gradient is not None
    both = torch.cat([out.detach().float().flatten(), gradient.float().flatten()])
    backend = BACKENDS[choice] if 0 <= choice < len(BACKENDS) else str(choice)
    return both, {"backend": backend, "offset": offset}


def lines() -> Iterator[dict[str, Any]]:
    for dtype in DTYPES:
        for shape in SHAPES:
            batch, _, length, _ = shape
            for is_causal in (False, True):
                q = torch.randn(shape, device="cuda", dtype=dtype)
                mask = torch.ones(batch, 1, length, length, dtype=torch.bool, device="cuda")
                if is_causal:
                    mask = mask.tril()
                bias = torch.zeros(mask.shape, device="cuda", dtype=dtype)
                bias = bias.masked_fill(~mask, torch.finfo(dtype).min)
                without, about = drawn(q, None, is_causal=is_causal)
                for name, given in (("bool", mask), ("additive", bias), ("again", None)):
                    found, how = drawn(q, given, is_causal=is_causal and given is None)
                    yield {
                        "dtype": str(dtype).removeprefix("torch."),
                        "shape": shape,
                        "is_causal": is_causal,
                        "mask": name,
                        "without": about,
                        "with": how,
                        "largest_difference": float((found - without).abs().max()),
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    about = {"gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    with options.json.open("w", encoding="utf-8") as out:
        for line in ({"about": about}, *lines()):
            print(json.dumps(line), file=out)
            print(json.dumps(line))


if __name__ == "__main__":
    main()
