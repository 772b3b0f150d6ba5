"""A model type of transformers -> its model with random weights, small, and inputs that it runs on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import transformers
from hf_config import FIRST_SPECIAL, IMAGE, WIDTH, small_configs
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from zoo import Built, Case, as_it_comes

MOST_PARAMETERS = 120_000_000
# In this order: a model that is in several tables is built for the first of them.
TASKS = (
    ("CAUSAL_LM", "text"),
    ("MASKED_LM", "text"),
    ("SEQ_TO_SEQ_CAUSAL_LM", "text"),
    ("IMAGE_TEXT_TO_TEXT", "multimodal"),
    ("IMAGE_CLASSIFICATION", "vision"),
    ("SEMANTIC_SEGMENTATION", "vision"),
    ("CTC", "audio"),
    ("SPEECH_SEQ_2_SEQ", "audio"),
    ("AUDIO_CLASSIFICATION", "audio"),
    ("VIDEO_CLASSIFICATION", "video"),
    ("DEPTH_ESTIMATION", "vision"),
    ("OBJECT_DETECTION", "vision"),
    ("UNIVERSAL_SEGMENTATION", "vision"),
    ("MASK_GENERATION", "vision"),
    ("TIME_SERIES_PREDICTION", "time series"),
    ("ZERO_SHOT_IMAGE_CLASSIFICATION", "multimodal"),
    ("PRETRAINING", "other"),
)


def cases() -> list[Case]:
    """One class for each model type, for the first task that it is listed under."""
    found: dict[str, Case] = {}
    tables = [(f"MODEL_FOR_{task}_MAPPING_NAMES", kind) for task, kind in TASKS]
    for table, kind in [*tables, ("MODEL_MAPPING_NAMES", "other")]:
        for model_type, named in getattr(modeling_auto, table).items():
            name = named[0] if isinstance(named, (tuple, list)) else named
            making = partial(build, model_type, name)
            found.setdefault(model_type, Case(model_type, "transformers", kind, name, making))
    return list(found.values())


def build(model_type: str, class_name: str) -> Built:
    """Raises what the first try raised where no small configuration runs on any inputs."""
    model_class = getattr(transformers, class_name)
    config_class = getattr(model_class, "config_class", None)
    if config_class is None:
        config_class = CONFIG_MAPPING[model_type]
    errors: list[Exception] = []
    for config in small_configs(config_class):
        try:
            model, parameters = _model(model_class, config)
        except Exception as error:
            errors.append(error)
            continue
        for sources, names in _tries(config, as_it_comes(model)):
            try:
                return _built(model, sources, names, parameters)
            except Exception as error:
                errors.append(error)
    raise (errors or [RuntimeError("no small configuration could be made")])[0]


def _model(model_class: type[Any], config: Any) -> tuple[Any, int]:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in model_class(config).parameters())
    if parameters > MOST_PARAMETERS:
        raise RuntimeError(f"{parameters:,} parameters are too many for this machine")
    torch.manual_seed(0)
    return model_class(config).eval(), parameters


def _tries(config: Any, model: Any) -> Iterator[tuple[Sources, tuple[str, ...]]]:
    sources = Sources(config, model)
    for names in choices(sources):
        sized = replace(sources, long_audio=False)
        if placeholders := _placeholders(sized, names):
            yield replace(sized, placeholders=placeholders), names
        if placeholders >= 2 * WIDTH:  # the number of features may have been that of their values
            yield replace(sized, placeholders=placeholders // WIDTH), names
        yield sized, names
        if {"input_features", "input_values"} & set(names):
            yield replace(sized, long_audio=True), names


def _placeholders(sources: Sources, names: tuple[str, ...]) -> int:
    """How many tokens stand for an image: models say it when the number does not fit."""
    if "input_ids" not in names or not {"pixel_values", "input_features"} & set(names):
        return 0
    trying = replace(sources, placeholders=1)
    try:
        with torch.no_grad():
            sources.model(**draw(trying, names))
    except Exception as error:
        found = re.search(r"tokens: ?(\d+),.*features:? ?(\d+)", str(error))
        if found:
            return max(1, int(found[2]) // max(1, int(found[1])))
        shapes = re.search(r"tokens.*?(\d+).*\[(\d+),", str(error))
        return int(shapes[2]) // 2 if shapes else 0
    return 1


def _built(model: Any, sources: Sources, names: tuple[str, ...], parameters: int) -> Built:
    def fresh() -> dict[str, Any]:
        return draw(sources, names)

    with torch.no_grad():
        sources.model(**fresh())
    with_loss, reason = _with_loss(sources, names)
    return Built(model, parameters, names, fresh, with_loss, reason)


def _with_loss(
    sources: Sources, names: tuple[str, ...]
) -> tuple[Callable[[], dict[str, Any]] | None, str]:
    extra = [name for name in ("labels", "return_loss") if name in sources.names]
    if not extra:
        return None, "its forward takes no labels"

    def fresh() -> dict[str, Any]:
        return draw(sources, (*names, *extra))

    try:
        with torch.no_grad():
            loss = getattr(sources.model(**fresh()), "loss", None)
    except Exception as error:
        return None, f"its loss refuses plain labels: {type(error).__name__}: {error}"[:200]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return None, "its output has no loss"
    return fresh, ""


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
