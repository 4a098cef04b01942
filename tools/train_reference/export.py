"""Writes a training state as a Hugging Face checkpoint, and reads one back into the torch model.

Tensor names and layout are those of GLM-5's published checkpoints: one tensor per expert, the MTP layer
at index ``num_hidden_layers``. The sparse-attention indexer is never reached (its budget is larger than
the context), but loaders ask for its tensors, so they are written with small random values.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from .model import ModelConfig, ReferenceModel
from .tokenizer import CONTROL_TOKENS, TEXT_TOKENS
from .train import load_model

STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
INDEXER_SEED = 7
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return found


def _mlp_names(prefix: str, name: str, value: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    """Split the fused matrices of a feed-forward layer."""
    if name == "router.weight":
        return {f"{prefix}.gate.weight": value}
    if name == "router_bias":
        return {f"{prefix}.gate.e_score_correction_bias": value}
    if name == "down_proj.weight":
        return {f"{prefix}.down_proj.weight": value}
    inner, experts = config.moe_intermediate_size, config.n_routed_experts
    if name == "gate_up.weight" and value.shape[0] == 2 * config.intermediate_size:
        gate, up = value.chunk(2)
        return {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}
    places = [f"{prefix}.experts.{i}" for i in range(experts)] + [f"{prefix}.shared_experts"]
    sizes = [inner] * experts + [inner * config.n_shared_experts]
    if name == "gate_up.weight":
        gate, up = value.chunk(2)
        named = zip(places, torch.split(gate, sizes), torch.split(up, sizes), strict=True)
        return {f"{at}.{k}_proj.weight": v for at, g, u in named for k, v in (("gate", g), ("up", u))}
    downs = zip(places, torch.split(value, sizes, dim=1), strict=True)
    return {f"{at}.down_proj.weight": down for at, down in downs}


def _block_names(prefix: str, name: str, value: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    if name.startswith("mlp."):
        return _mlp_names(f"{prefix}.mlp", name.removeprefix("mlp."), value, config)
    return {f"{prefix}.{name}": value}


def published_names(name: str, value: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    """Return the published tensors that one tensor of the torch model becomes."""
    head = f"model.layers.{config.num_hidden_layers}"
    if name == "lm_head.weight":
        return {name: value}
    if name == "mtp.norm.weight":
        return {f"{head}.shared_head.norm.weight": value}
    if name.startswith("mtp.block."):
        return _block_names(head, name.removeprefix("mtp.block."), value, config)
    if name.startswith("mtp."):
        return {f"{head}.{name.removeprefix('mtp.')}": value}
    if name.startswith("layers."):
        _, index, rest = name.split(".", 2)
        return _block_names(f"model.layers.{index}", rest, value, config)
    return {f"model.{name}": value}


def indexer_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Untrained indexer tensors for every layer, the MTP layer included."""
    generator = torch.Generator().manual_seed(INDEXER_SEED)
    heads, width, hidden = config.index_n_heads, config.index_head_dim, config.hidden_size
    tensors = {}
    for index in range(config.num_hidden_layers + 1):
        prefix = f"model.layers.{index}.self_attn.indexer"
        shapes = {
            "wq_b": (heads * width, config.q_lora_rank),
            "wk": (width, hidden),
            "weights_proj": (heads, hidden),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = torch.randn(shape, generator=generator) * 0.02
        tensors[f"{prefix}.k_norm.weight"] = torch.ones(width)
        tensors[f"{prefix}.k_norm.bias"] = torch.zeros(width)
    return tensors


def checkpoint_tensors(model: ReferenceModel) -> dict[str, Tensor]:
    """Every tensor of the checkpoint, float32."""
    tensors = {}
    for name, value in model.state_dict().items():
        tensors.update(published_names(name, value, model.config))
    tensors.update(indexer_tensors(model.config))
    return {name: tensors[name].float().contiguous() for name in sorted(tensors)}


def hf_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of config.json."""
    values: dict[str, Any] = config.to_dict()
    theta = values.pop("rope_theta")
    layers = config.num_hidden_layers
    values |= {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "float32",
        "num_key_value_heads": config.num_attention_heads,
        "num_nextn_predict_layers": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "indexer_types": ["full"] * layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "bos_token_id": None,
        "pad_token_id": token_id(tokenizer, "<|endoftext|>"),
        "eos_token_id": [token_id(tokenizer, token) for token in STOP_TOKENS],
    }
    return dict(sorted(values.items()))


def tokenizer_config(config: ModelConfig) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": list(CONTROL_TOKENS),
        "text_markers": list(TEXT_TOKENS),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_checkpoint(model: ReferenceModel, tokenizer_path: Path, directory: Path) -> None:
    """Write all files of the checkpoint except MODEL.md."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    config = hf_config(model.config, tokenizer)
    _write_json(directory / "config.json", config)
    _write_json(directory / "tokenizer_config.json", tokenizer_config(model.config))
    generation = {key: config[key] for key in ("eos_token_id", "pad_token_id")}
    _write_json(directory / "generation_config.json", {"do_sample": False, **generation})
    if tokenizer_path.resolve() != (directory / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_path, directory / "tokenizer.json")
    shutil.copyfile(TEMPLATE, directory / "chat_template.jinja")
    weights = directory / "model.safetensors"
    save_file(checkpoint_tensors(model), weights, metadata={"format": "pt"})
    weights.chmod(0o644)


def read_checkpoint(directory: Path) -> ReferenceModel:
    """Load a published checkpoint into the torch model."""
    values = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    values["rope_theta"] = values["rope_parameters"]["rope_theta"]
    known = set(ModelConfig.__dataclass_fields__)
    model = ReferenceModel(ModelConfig(**{key: value for key, value in values.items() if key in known}))
    published = load_file(directory / "model.safetensors")
    with torch.no_grad():
        for name, value in model.state_dict().items():
            for part, view in published_names(name, value, model.config).items():
                view.copy_(published[part])
    return model.eval()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", type=Path, help="a state saved by train.py")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("directory", type=Path, help="where the checkpoint goes")
    arguments = parser.parse_args()
    write_checkpoint(load_model(arguments.state), arguments.tokenizer, arguments.directory)


if __name__ == "__main__":
    main()
