"""A model of transformers and its configuration -> named inputs, drawn anew on each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hf_config import FIRST_SPECIAL, IMAGE

Draw = Callable[[], torch.Tensor]
BATCH, LENGTH = 2, 12
PIXELS = ("pixel_values", "pixel_values_videos", "image_grid_thw", "mm_token_type_ids")
TEXT = ("input_ids", "attention_mask", "token_type_ids", "bbox")


@dataclass(frozen=True)
class Sources:
    """What inputs depend on: the model's configuration, its class and its placeholders for images."""

    config: Any
    model: Any
    placeholders: int = 0
    long_audio: bool = False

    @property
    def names(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.model.forward).parameters)

    def of(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that the configuration, or its part for images, has."""
        parts = [self.config]
        for part in ("vision_config", "audio_config", "backbone_config", "encoder", "text_config"):
            inner = getattr(self.config, part, None)
            if hasattr(inner, "to_dict"):
                parts.append(inner)
        for name in names:
            for part in parts:
                value = getattr(part, name, None)
                if value is not None:
                    return value
        return default


def draw(sources: Sources, names: tuple[str, ...]) -> dict[str, Any]:
    """Fresh values for these inputs."""
    drawn = {name: DRAWN[name](sources) for name in names}
    ids = drawn.get("input_ids")
    if ids is not None and "labels" in drawn and drawn["labels"] is None:
        drawn["labels"] = ids.clone()
    return drawn


def _words(sources: Sources, length: int) -> torch.Tensor:
    text = sources.config.get_text_config()
    top = min(getattr(text, "vocab_size", None) or FIRST_SPECIAL, FIRST_SPECIAL)
    return torch.randint(4, top, (BATCH, length))


def _input_ids(sources: Sources) -> torch.Tensor:
    ids = _words(sources, LENGTH + sources.placeholders)
    if sources.placeholders:
        marks = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
        ids[:, 1 : 1 + sources.placeholders] = sources.of(*marks)
    if hasattr(sources.config, "question_token_id"):
        ids[:, 1] = sources.config.question_token_id  # Splinter answers what it stands for
    return ids


def _image_size(sources: Sources) -> tuple[int, int]:
    size = sources.of("image_size", "img_size", default=IMAGE)
    if isinstance(size, (list, tuple)):
        return (size[0], size[-1])
    return (size, size) if isinstance(size, int) else (IMAGE, IMAGE)


def _pixels(sources: Sources) -> torch.Tensor:
    channels = sources.of(
        "num_channels", "in_channels", "in_chans", "num_image_channels", default=3
    )
    if "image_grid_thw" in sources.names:
        patch = sources.of("patch_size", default=14)
        depth = sources.of("temporal_patch_size", default=1)
        return torch.rand(BATCH * 16, channels * depth * patch * patch)
    if sources.of("num_frames", default=None) and "input_ids" not in sources.names:
        return torch.rand(BATCH, sources.of("num_frames"), channels, *_image_size(sources))
    return torch.rand(BATCH, channels, *_image_size(sources))


def _features(sources: Sources) -> torch.Tensor:
    bins = sources.of("num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
    frames = 2 * sources.of("max_source_positions", default=50)
    return torch.randn(BATCH, *((bins, frames) if sources.long_audio else (40, bins)))


def _audio(sources: Sources) -> torch.Tensor:
    if sources.of("num_mel_bins", "max_length") and hasattr(sources.config, "frequency_stride"):
        return torch.randn(BATCH, sources.config.max_length, sources.config.num_mel_bins)
    return torch.randn(BATCH, *((1, 4000) if sources.long_audio else (4000,)))


def _labels(sources: Sources) -> torch.Tensor | list[dict[str, torch.Tensor]] | None:
    name = type(sources.model).__name__
    if name.endswith("ObjectDetection"):
        return [_objects(sources) for _ in range(BATCH)]
    if "Semantic" in name:
        return torch.randint(0, 2, (BATCH, *_image_size(sources)))
    if name.endswith(("Classification", "Classifier")):
        return torch.randint(0, sources.config.num_labels, (BATCH,))
    if name.endswith("CTC"):
        return torch.randint(4, 30, (BATCH, 4))
    if getattr(sources.config, "is_encoder_decoder", False) or "input_ids" not in sources.names:
        return _words(sources, 6)
    return None


def _objects(sources: Sources) -> dict[str, torch.Tensor]:
    """Three boxes as centers and sizes, and what is in them."""
    boxes = torch.cat([0.3 + 0.4 * torch.rand(3, 2), 0.1 + 0.2 * torch.rand(3, 2)], dim=1)
    return {"class_labels": torch.randint(0, sources.config.num_labels, (3,)), "boxes": boxes}


def _types(sources: Sources) -> torch.Tensor:
    types = torch.zeros(BATCH, LENGTH + sources.placeholders, dtype=torch.long)
    types[:, 1 : 1 + sources.placeholders] = 1
    return types


def _series(sources: Sources, length: int) -> torch.Tensor:
    return torch.rand(BATCH, length)


DRAWN: dict[str, Callable[[Sources], Any]] = {
    "input_ids": _input_ids,
    "attention_mask": lambda s: torch.ones(BATCH, LENGTH + s.placeholders, dtype=torch.long),
    "token_type_ids": lambda s: torch.zeros(BATCH, LENGTH + s.placeholders, dtype=torch.long),
    "mm_token_type_ids": _types,
    "bbox": lambda s: torch.randint(0, 50, (BATCH, LENGTH, 4)).sort(-1).values,
    "decoder_input_ids": lambda s: _words(s, 6),
    "pixel_values": _pixels,
    "pixel_values_videos": lambda s: torch.rand(
        BATCH, s.of("num_frames", "frames_per_clip", default=4), 3, *_image_size(s)
    ),
    "image_grid_thw": lambda s: torch.tensor([[1, 4, 4]] * BATCH),
    "grid_thw": lambda s: torch.tensor([[1, 4, 4]] * BATCH),
    "input_features": _features,
    "input_values": _audio,
    "labels": _labels,
    "past_values": lambda s: torch.rand(
        BATCH, s.of("context_length", default=32), s.of("num_input_channels", default=1)
    ),
    "return_loss": lambda s: True,
    "input_points": lambda s: torch.rand(BATCH, 1, 1, 2) * 30,
}


def choices(sources: Sources) -> list[tuple[str, ...]]:
    """Which inputs to try, the fullest set first; only those that the model's forward takes."""
    known = sources.names
    usual = [name for name in DRAWN if name in known and name not in ("labels", "return_loss")]
    if "input_ids" not in known:
        usual = [n for n in usual if n not in ("attention_mask", "token_type_ids")]
    if "decoder_input_ids" in usual and "labels" in known:
        usual.remove("decoder_input_ids")
    required = [n for n, p in known.items() if n in DRAWN and p.default is p.empty]
    main = getattr(sources.model, "main_input_name", "input_ids")
    text_only = [name for name in usual if name in TEXT]
    least = list(dict.fromkeys([*required, *([main] if main in DRAWN and main in known else [])]))
    seq2seq = [*usual, "decoder_input_ids"] if "decoder_input_ids" in known else []
    images = [n for n in usual if n != "pixel_values_videos"]
    no_grid = [n for n in usual if n not in PIXELS or n == "pixel_values"]
    found = [usual, images, seq2seq, no_grid, least, text_only]
    return [
        names for names in dict.fromkeys(tuple(dict.fromkeys(names)) for names in found) if names
    ]
