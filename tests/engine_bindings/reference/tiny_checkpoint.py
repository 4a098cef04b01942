"""Writes small random checkpoints of the GLM layout for tests."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Tensors = dict[str, NDArray[Any]]

TINY: Mapping[str, Any] = {
    "model_type": "glm_moe_dsa",
    "vocab_size": 53,
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "q_lora_rank": 10,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "intermediate_size": 24,
    "moe_intermediate_size": 9,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    "max_position_embeddings": 512,
    "index_topk": 512,
    "num_nextn_predict_layers": 1,
    "eos_token_id": [50, 51],
}


def seeded(seed: int | str) -> random.Random:
    """Return a generator of the same values in every run."""
    return random.Random(seed)  # noqa: S311 - nothing here is secret


def tiny_config(**changes: Any) -> dict[str, Any]:
    """The values of config.json; a value of None leaves the key out."""
    return {key: value for key, value in {**TINY, **changes}.items() if value is not None}


def layer_shapes(c: Mapping[str, Any], index: int, *, dense: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors."""
    width, heads, rope = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"]
    nope, value, query, latent = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"], c["kv_lora_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_a_proj.weight": (query, width),
        "self_attn.q_a_layernorm.weight": (query,),
        "self_attn.q_b_proj.weight": (heads * (nope + rope), query),
        "self_attn.kv_a_proj_with_mqa.weight": (latent + rope, width),
        "self_attn.kv_a_layernorm.weight": (latent,),
        "self_attn.kv_b_proj.weight": (heads * (nope + value), latent),
        "self_attn.o_proj.weight": (width, heads * value),
    }
    units, experts = c["moe_intermediate_size"], c["n_routed_experts"]
    gated = {"mlp": c["intermediate_size"]} if dense else {f"mlp.experts.{e}": units for e in range(experts)}
    if not dense:
        gated["mlp.shared_experts"] = units * c["n_shared_experts"]
        shapes |= {"mlp.gate.weight": (experts, width), "mlp.gate.e_score_correction_bias": (experts,)}
    for name, inner in gated.items():
        shapes |= {f"{name}.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes[f"{name}.down_proj.weight"] = (width, inner)
    return {f"model.layers.{index}.{name}": shape for name, shape in shapes.items()}


def tensor_shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors."""
    width, layers = c["hidden_size"], c["num_hidden_layers"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c["vocab_size"], width),
        "lm_head.weight": (c["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for index in range(layers):
        shapes |= layer_shapes(c, index, dense=index < c["first_k_dense_replace"])
    if c.get("num_nextn_predict_layers"):
        shapes |= layer_shapes(c, layers, dense=False)
        names = ("enorm", "hnorm", "shared_head.norm")
        shapes |= {f"model.layers.{layers}.{name}.weight": (width,) for name in names}
        shapes[f"model.layers.{layers}.eh_proj.weight"] = (width, 2 * width)
    return shapes


def tiny_tensors(c: Mapping[str, Any], seed: int = 0, size: float = 1.5) -> Tensors:
    """Random tensors; ``size`` scales the matrices."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in tensor_shapes(c).items():
        values = rng.standard_normal(shape)
        if len(shape) == 2:
            values *= size * shape[1] ** -0.5
        elif "norm" in name:
            values = 1 + 0.3 * values
        else:
            values *= 0.2
        tensors[name] = values.astype(np.float32)
    return tensors


def write_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    size: float = 1.5,
    change: Callable[[Tensors], None] | None = None,
    **changes: Any,
) -> Path:
    """Write config.json and model.safetensors into ``folder``; ``change`` edits the tensors first."""
    config = tiny_config(**changes)
    tensors = tiny_tensors(config, seed, size)
    if change is not None:
        change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder
