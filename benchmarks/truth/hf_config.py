"""A configuration class of transformers -> configurations of the same shape, small enough for a CPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH, HEADS, HEAD_DIM, WORDS, FIRST_SPECIAL, IMAGE, PATCH = 64, 4, 16, 320, 280, 64, 8

# Names that mean the same in nearly all of the library's configurations, with their small values.
WIDTHS = dict.fromkeys(
    (
        "hidden_size",
        "d_model",
        "n_embd",
        "dim",
        "embedding_size",
        "hidden_dim",
        "model_dim",
        "projection_dim",
        "out_hidden_size",
        "text_hidden_size",
        "word_embed_proj_dim",
        "width",
    ),
    WIDTH,
)
HEAD_COUNTS = dict.fromkeys(
    (
        "num_attention_heads",
        "num_heads",
        "n_head",
        "n_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "attention_heads",
        "num_encoder_attention_heads",
        "num_decoder_attention_heads",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_num_heads",
    ),
    HEADS,
)
HEAD_DIMS = dict.fromkeys(
    (
        "head_dim",
        "d_kv",
        "attention_head_dim",
        "kv_channels",
        "v_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_head_dim",
        "global_head_dim",
    ),
    HEAD_DIM,
)
LAYERS = dict.fromkeys(
    (
        "num_hidden_layers",
        "num_layers",
        "n_layer",
        "n_layers",
        "encoder_layers",
        "decoder_layers",
        "num_encoder_layers",
        "num_decoder_layers",
        "encoder_num_layers",
        "decoder_num_layers",
        "depth",
        "num_blocks",
        "depth_levels",
    ),
    2,
)
INNER = dict.fromkeys(
    (
        "intermediate_size",
        "ffn_dim",
        "d_ff",
        "n_inner",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "mlp_dim",
        "feed_forward_size",
        "encoder_intermediate_size",
        "decoder_intermediate_size",
        "ffn_hidden_size",
    ),
    128,
)
EXPERTS = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k"), 2
    ),
}
COUNTS = {
    **EXPERTS,
    "rotary_dim": 8,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "laurel_rank": 8,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": HEAD_DIM,
    "mamba_head_dim": HEAD_DIM,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "state_size": 16,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "max_source_positions": 100,
    "max_target_positions": 100,
    "num_queries": 8,
    "num_labels": 4,
    "num_mel_bins": 16,
    "num_frames": 4,
}
WORD_COUNTS = dict.fromkeys(
    ("vocab_size", "encoder_vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input"), WORDS
)
MAY_BE_NONE = {
    **EXPERTS,
    "head_dim": HEAD_DIM,
}  # None there means none, or that another name says it
LADDER: tuple[Mapping[str, int], ...] = (
    {**WIDTHS, **HEAD_COUNTS, **HEAD_DIMS, **LAYERS, **INNER, **COUNTS, **WORD_COUNTS},
    {**LAYERS, **INNER, **COUNTS, **WORD_COUNTS},
    {**LAYERS, **WORD_COUNTS},
    LAYERS,
)
# Rotary embeddings of time, height and width, whose sections only a checkpoint's settings name.
THREE_PARTS = ("qwen2_vl_text", "qwen2_5_vl_text")
# Attention draws inside its kernels, and where code asks whether it is captured, it may take another
# kernel, whose mask is as good and not eager's: a comparison could not tell that from a mistake.
ATTENTION_DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
LIST_DEPTHS = ("depths", "num_layers", "layer_depths", "num_blocks", "layers")


def small_configs(config_class: type[Any]) -> Iterator[Any]:
    """From the smallest to the one that only has fewer layers; the first that runs is taken."""
    for step, sizes in enumerate(LADDER):
        for image in (True, False) if step < 2 else (False,):
            given = _overrides(config_class, sizes, image=image, renamed={})
            try:
                config = config_class(**given)
            except Exception:
                continue
            yield config


def _overrides(
    config_class: type[Any], sizes: Mapping[str, int], *, image: bool, renamed: dict[int, int]
) -> dict[str, Any]:
    default = config_class()
    given = {}
    for name, value in _values(default).items():
        small = _small(name, value, sizes, renamed)
        if value is None and name in MAY_BE_NONE and "hidden_size" in sizes:
            small = MAY_BE_NONE[name]
        if small is not None:
            given[name] = small
    if "kv_lora_rank" in given and "num_key_value_heads" in given:
        given["num_key_value_heads"] = HEADS  # each head has keys of its own there
    if default.model_type in THREE_PARTS and "hidden_size" in sizes:
        base = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": []}
        given["rope_parameters"] = _rope(base)
    given |= _layer_types(default, given)
    if _is_hierarchical(default):
        for name in (*WIDTHS, *HEAD_COUNTS, *HEAD_DIMS, *INNER):
            given.pop(name, None)
    given |= _image(default) if image else {}
    for name, part in getattr(default, "sub_configs", {}).items():
        value = getattr(default, name, None)
        if value is None or not hasattr(value, "to_dict"):
            continue
        if value.model_type == "timm_backbone":
            given[name] = {**value.to_dict(), "backbone": "resnet18"}
            continue
        kind = type(value) if part.__name__.startswith("Auto") else part
        inner = _overrides(kind, sizes, image=image, renamed=renamed)
        given[name] = {"model_type": value.model_type, **inner}
    return given


def _layer_types(default: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of each kind, where a configuration names the kind of each layer."""
    named: dict[str, Any] = {}
    if isinstance(getattr(default, "attention_types", None), list):
        named["attention_types"] = [[["global", "local"], 1]]
    if hasattr(default, "attn_layer_indices"):
        named["attn_layer_indices"] = [1]
    for name in ("layer_types", "layers_block_type", "block_types", "mlp_layer_types"):
        own = getattr(default, "attribute_map", {}).get(name, name)
        if isinstance(getattr(type(default), own, None), property):
            continue  # it follows from other settings
        types = getattr(default, name, None)
        if isinstance(types, list) and all(isinstance(each, str) for each in types) and types:
            count = given.get("num_hidden_layers", 2)
            kinds = list(dict.fromkeys(types))
            named[name] = [kinds[place % len(kinds)] for place in range(count)]
    return named


def _values(config: Any) -> dict[str, Any]:
    """What a configuration says of itself, by the names that its class was given."""
    known = dict(config.to_dict())
    names = dict(getattr(config, "attribute_map", {}))
    for common, own in names.items():
        if own in known:
            known.pop(common, None)
    accepted = inspect.signature(type(config).__init__).parameters
    return {name: known[name] for name in known if name in accepted or not name.startswith("_")}


def _small(name: str, value: Any, sizes: Mapping[str, int], renamed: dict[int, int]) -> Any:
    if name.endswith(("token_id", "token_index")) and "vocab_size" in sizes:
        return _special(value, renamed)
    if name in ATTENTION_DROPOUTS:
        return 0 if isinstance(value, int) else 0.0  # as strict configurations have it
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int) and name in sizes:
        return min(value, sizes[name])
    if name in ("num_key_value_heads", "num_global_key_value_heads") and "hidden_size" in sizes:
        return 2
    if name in LIST_DEPTHS and isinstance(value, (list, tuple)) and all_ints(value):
        return [min(depth, 2) for depth in value]
    if name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
        return _rope(value) if "hidden_size" in sizes else None
    return None


def all_ints(values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _rope(value: dict[str, Any]) -> dict[str, Any] | None:
    """The sections of a rotary embedding must add up to half of a head."""
    if "mrope_section" not in value:
        return None
    return {**value, "mrope_section": [HEAD_DIM // 4, HEAD_DIM // 8, HEAD_DIM // 8]}


def _special(value: Any, renamed: dict[int, int]) -> Any:
    """Special tokens keep apart from each other and from the words that are drawn."""
    if isinstance(value, (list, tuple)):
        return [_special(each, renamed) for each in value]
    if not isinstance(value, int) or value < 4:
        return None
    return renamed.setdefault(value, FIRST_SPECIAL + len(renamed) % (WORDS - FIRST_SPECIAL))


def _is_hierarchical(config: Any) -> bool:
    """Whether widths and heads come as lists that have to fit each other."""
    names = ("depths", "num_heads", "num_attention_heads", "hidden_sizes", "embed_dims")
    return any(isinstance(getattr(config, name, None), (list, tuple)) for name in names)


def _image(config: Any) -> dict[str, Any]:
    size = getattr(config, "image_size", None)
    if isinstance(size, int):
        given: dict[str, Any] = {"image_size": IMAGE}
    elif isinstance(size, (list, tuple)):
        given = {"image_size": [IMAGE] * len(size)}
    else:
        return {}
    if isinstance(getattr(config, "patch_size", None), int) and not _is_hierarchical(config):
        given["patch_size"] = min(config.patch_size, PATCH)
    return given
