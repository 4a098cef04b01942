"""The dimensions of a model, read from a ``config.json`` of the ``glm_moe_dsa`` kind and checked."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from engine_bindings.errors import CheckpointError

MODEL_TYPE = "glm_moe_dsa"
CONFIG_FILE = "config.json"
MAX_DIMENSION = 1 << 20  # no known model is beyond it; a larger number is a damaged file
MAX_LAYERS = 1024
MAX_CONTEXT_TOKENS = 1 << 24
MAX_EXPERTS = 64  # all experts are computed for every row, which pays for small models only

FIXED_VALUES: Mapping[str, object] = {
    "hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_interleave": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Dimensions and constants of a model; the names are those of the Hugging Face configuration.

    Attributes:
        num_nextn_predict_layers: 1 or 0 MTP layers; None when the file does not say and the tensors decide.
        max_context_tokens: positions this engine can serve, ``min(max_position_embeddings, index_topk)``: up
            to there the sparse attention of the architecture selects every key, so the indexer can be left
            out.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    first_k_dense_replace: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    rms_norm_eps: float
    rope_theta: float
    max_context_tokens: int
    num_nextn_predict_layers: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Values a layer caches for one position: the rope key and the latent row."""
        return self.qk_rope_head_dim + self.kv_lora_rank

    @property
    def mtp_layer(self) -> int:
        """Index of the MTP layer's tensors and KV rows."""
        return self.num_hidden_layers


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes checked values out of a parsed file; a refusal names file, key, value and remedy."""

    file: Path
    values: Mapping[str, Any]

    def refuse(self, key: str, problem: str, hint: str) -> NoReturn:
        shown = repr(self.values[key])[:80] if key in self.values else "missing"
        raise CheckpointError(f"{self.file}: {key!r} is {shown}: {problem}", hint=hint)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if value is None:
            self.refuse(
                key, f"an integer from {low} to {high} is needed", f"add {key!r} from the original model"
            )
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(
                key, f"an integer from {low} to {high} is needed", "use the original model's config.json"
            )
        return value

    def number(self, key: str, low: float, high: float, default: float) -> float:
        value = self.values.get(key, default)
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high:
            self.refuse(
                key, f"a number from {low:g} to {high:g} is needed", "use the original model's config.json"
            )
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false is needed", "use the original model's config.json")
        return value

    def check_fixed(self) -> None:
        for key, expected in FIXED_VALUES.items():
            if self.values.get(key, expected) != expected:
                hint = f"only {json.dumps(expected)} is implemented; choose another checkpoint"
                self.refuse(key, "this variant of the architecture is not supported", hint)

    def rope_theta(self) -> float:
        if "rope_parameters" not in self.values:
            return self.number("rope_theta", 1.0, 1e12, 10000.0)
        inner = self.values["rope_parameters"]
        if not isinstance(inner, dict) or inner.get("rope_type", "default") != "default":
            self.refuse(
                "rope_parameters", "only rope_type 'default' is supported", "choose another checkpoint"
            )
        return _Reader(self.file, inner).number("rope_theta", 1.0, 1e12, 10000.0)

    def eos_token_ids(self, vocab_size: int) -> tuple[int, ...]:
        value = self.values.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in ids):
            self.refuse("eos_token_id", f"token ids from 0 to {vocab_size - 1} are needed", "correct the ids")
        return tuple(ids)

    def check_layer_types(self, layers: int, dense: int) -> None:
        types = self.values.get("mlp_layer_types")
        if types is not None and types != ["dense"] * dense + ["sparse"] * (layers - dense):
            self.refuse(
                "mlp_layer_types",
                f"{dense} dense layers, then sparse ones, are needed (first_k_dense_replace is {dense})",
                "make both keys agree",
            )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold an object. Raises CheckpointError."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        hint = "name a directory with config.json, tokenizer.json and *.safetensors"
        raise CheckpointError(f"{path}: no such file", hint=hint) from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}", hint="copy the file again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: the file holds no JSON object", hint="copy the file again")
    return value


def _check_model_type(reader: _Reader) -> None:
    if reader.values.get("model_type") != MODEL_TYPE:
        hint = f"only {MODEL_TYPE!r} checkpoints can be loaded"
        reader.refuse("model_type", "this architecture is not supported", hint)


def _check_combinations(reader: _Reader, config: ModelConfig) -> None:
    if config.first_k_dense_replace > config.num_hidden_layers:
        reader.refuse(
            "first_k_dense_replace", f"there are {config.num_hidden_layers} layers", "correct the number"
        )
    if config.num_experts_per_tok > config.n_routed_experts:
        reader.refuse(
            "num_experts_per_tok", f"there are {config.n_routed_experts} experts", "correct the number"
        )
    if config.qk_rope_head_dim % 2:
        reader.refuse("qk_rope_head_dim", "rotary pairs need an even number", "correct the number")
    reader.check_layer_types(config.num_hidden_layers, config.first_k_dense_replace)


def _build_config(reader: _Reader) -> ModelConfig:
    def size(key: str, high: int = MAX_DIMENSION) -> int:
        return reader.integer(key, 1, high)

    vocab_size = size("vocab_size")
    positions = size("max_position_embeddings", MAX_CONTEXT_TOKENS)
    selected = reader.integer("index_topk", 1, MAX_CONTEXT_TOKENS, default=positions)
    has_count = reader.values.get("num_nextn_predict_layers") is not None
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=size("hidden_size"),
        num_hidden_layers=size("num_hidden_layers", MAX_LAYERS),
        num_attention_heads=size("num_attention_heads"),
        q_lora_rank=size("q_lora_rank"),
        kv_lora_rank=size("kv_lora_rank"),
        qk_nope_head_dim=size("qk_nope_head_dim"),
        qk_rope_head_dim=size("qk_rope_head_dim"),
        v_head_dim=size("v_head_dim"),
        intermediate_size=size("intermediate_size"),
        moe_intermediate_size=size("moe_intermediate_size"),
        n_routed_experts=size("n_routed_experts", MAX_EXPERTS),
        num_experts_per_tok=size("num_experts_per_tok", MAX_EXPERTS),
        n_shared_experts=size("n_shared_experts", MAX_EXPERTS),
        first_k_dense_replace=reader.integer("first_k_dense_replace", 0, MAX_LAYERS),
        routed_scaling_factor=reader.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        norm_topk_prob=reader.flag("norm_topk_prob", default=False),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-30, 1.0, 1e-5),
        rope_theta=reader.rope_theta(),
        max_context_tokens=min(positions, selected),
        num_nextn_predict_layers=reader.integer("num_nextn_predict_layers", 0, 1) if has_count else None,
        eos_token_ids=reader.eos_token_ids(vocab_size),
    )


def read_model_config(model_dir: Path) -> ModelConfig:
    """Read and check ``config.json``. Raises CheckpointError naming file, key, value and remedy."""
    path = model_dir / CONFIG_FILE
    reader = _Reader(path, read_json_object(path))
    _check_model_type(reader)
    reader.check_fixed()
    config = _build_config(reader)
    _check_combinations(reader, config)
    return config
