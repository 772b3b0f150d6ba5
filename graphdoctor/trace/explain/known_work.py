"""Classify host work by the name of an operator, a call or a Python function."""

from __future__ import annotations

import re
from functools import lru_cache

from graphdoctor.trace.api import is_blocking
from graphdoctor.values.trace import WorkKind

# Work that is no part of launching the model: a graph does not remove it.
ELSEWHERE: frozenset[WorkKind] = frozenset(
    {
        *("data-loading", "preprocessing", "allocation", "garbage-collection", "compilation"),
        *("graph-instantiation", "logging", "files", "another-thread", "sleep", "lock", "warm-up"),
    }
)

# Of this not even the best graph spares anything: it makes the step's inputs. A line that logs, or a file that is
# read, may stand inside of the model, which replays do not run; an allocation or a compilation may go, too.
STAYS: frozenset[WorkKind] = frozenset({"data-loading", "preprocessing"})

_KNOWN: tuple[tuple[WorkKind, str], ...] = (
    ("allocation", r"^(cuda|hip)(Malloc|Free|Host(Alloc|Malloc|Free|Register)|MemPool)|^cu(Mem(Alloc|"
     r"Free|Create|Map|Unmap|Release|SetAccess|Address)|MemHostAlloc)"),
    ("graph-instantiation", r"^(cuda|hip|cu)Graph(Instantiate|Exec(Update|Destroy)|Upload)"
     r"|^(cuda|hip|cu)Stream(Begin|End)Capture|cuda/graphs\.py\(\d+\): (capture_begin|capture_end"
     r"|__enter__|__exit__|instantiate)|capture_(begin|end) of .*CUDAGraph"),
    ("compilation", r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|bytecode_trans)"
     r"|torch/_inductor/(compile_fx|graph|scheduler|codegen|lowering|codecache|select_algorithm"
     r"|async_compile|autotune_process)|torch/fx/(experimental/(symbolic|proxy|recording)|_symbolic_trace|passes/)|triton/(compiler|runtime/(autotuner|build))"
     r"|triton_heuristics\.py\(\d+\): (autotune|benchmark|precompile)|^nvrtc|^hiprtc"
     r"|torch/utils/cpp_extension\.py"),
    ("warm-up", r"^(cu|hip)(Module|Library)Load|^cudaLibraryLoad|^Lazy Function Loading"
     r"|^Runtime Triggered Module Loading"),
    ("garbage-collection", r"^<built-in function collect>|^gc\.py|\bgarbage[ _-]?collect|^gc$"
     r"|^(python )?gc(\.collect| collect)"),
    ("data-loading", r"DataLoader|torch/utils/data/|torchdata/|(^|/)datasets/|webdataset/|nvidia/dali/"
     r"|ffcv/|streaming/base/"),
    ("preprocessing", r"scipy/(ndimage|signal)|(^|/)PIL/|torchvision/(transforms|io)|(^|/)cv2[/ .]"
     r"|skimage/|albumentations/|image_processing|image_transforms|feature_extraction|tokenization_"
     r"|tokenizers|librosa/|torchaudio/(transforms|functional|compliance)|torchvision\.transforms"
     r"|_preprocess\b|: preprocess"),
    ("logging", r"^logging/|/logging/__init__\.py|^<built-in function print>|tensorboard/|tensorboardX"
     r"|(^|/)wandb/|(^|/)mlflow/|(^|/)loguru/|(^|/)rich/|tqdm/(?!_monitor)|(^|/)neptune/|comet_ml/"),
    ("files", r"torch/serialization\.py|safetensors|^<built-in method (read|write|flush|fsync) of"
     r"|^<built-in function (open|fsync)>|(^|/)pickle\.py|<built-in (function|method) (load|dump)s?>"),
    ("optimizer", r"^Optimizer\.|torch/optim/|(^|/)(apex|bitsandbytes)/optim"),
    ("sleep", r"<built-in function sleep>|^n?sleep$"),
    ("lock", r"<built-in method acquire of _thread|<method 'acquire' of|<built-in method poll of"
     r"|<built-in function select>|<built-in method join of|^pthread_(mutex|cond)"),
)  # fmt: skip
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KNOWN)


@lru_cache(maxsize=1 << 13)
def known_work(name: str) -> WorkKind | None:
    """What the host is known to do under this name; None for ordinary Python and operators."""
    for kind, pattern in _PATTERNS:
        if pattern.search(name):
            return kind
    return "sync" if is_blocking(name) else None
