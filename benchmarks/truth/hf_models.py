"""A model type of transformers -> its model with random weights, small, and inputs that it runs on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from hf_config import WIDTH, small_configs
from hf_inputs import Sources, choices, draw
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
