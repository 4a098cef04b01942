"""Writes a checkpoint of the embedded engine as a GGUF file for llama.cpp, with MTP head and tokenizer.

The architecture is ``glm-dsa``: of those that llama.cpp knows it is the one with latent attention, sigmoid
routing with a correction bias and an MTP layer. Everything stays float32.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_bindings.errors import CheckpointError, UsageError
from engine_bindings.gguf_tensors import GgufTensors
from engine_bindings.reference.config import ModelConfig, read_json_object, read_model_config
from engine_bindings.reference.runtime import PACKAGED_CHECKPOINT
from engine_bindings.reference.tensors import read_tensors
from engine_bindings.reference.tokenizer import TOKENIZER_FILE, Tokenizer

if TYPE_CHECKING:
    import gguf

ARCHITECTURE = "glm-dsa"
# GLM's split pattern. llama.cpp knows a tokenizer's pattern by such a name only.
PRE_TOKENIZER = "chatglm-bpe"
GLM_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE_FILE = "chat_template.jinja"
# A GGUF file has three places for tokens that end an answer; llama.cpp stops at each of them.
STOP_KEYS = ("eos", "eot", "eom")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufSummary:
    """What was written."""

    path: Path
    tensors: int
    size_bytes: int
    has_mtp: bool


def export_gguf(path: Path, model_dir: Path | None = None) -> GgufSummary:
    """Write ``model_dir``, by default the shipped checkpoint, to a new file.

    Raises:
        UsageError: the package ``gguf`` is missing, or the file exists or cannot be written.
        CheckpointError: the checkpoint is damaged, or holds what the format cannot express.
    """
    source = model_dir or PACKAGED_CHECKPOINT
    library = _import_library()
    config = read_model_config(source)
    tokenizer = Tokenizer(source, model_vocab_size=config.vocab_size)
    tensors = GgufTensors(config, read_tensors(source))
    with _new_file(path) as unfinished:
        writer = library.GGUFWriter(unfinished, ARCHITECTURE)
        _add_dimensions(writer, library, config, tensors)
        _add_tokenizer(writer, library, config, source, tokenizer)
        for name, array in tensors.by_name.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    size_bytes = path.stat().st_size
    return GgufSummary(
        path=path, tensors=len(tensors.by_name), size_bytes=size_bytes, has_mtp=tensors.has_mtp
    )


def _import_library() -> Any:
    try:
        import gguf  # noqa: PLC0415 - an extra that most users do not need
    except ImportError:
        raise UsageError(
            "the package gguf is not installed", hint="pip install 'coli-ab[llamacpp]' brings it"
        ) from None
    return gguf


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write to; it becomes ``path`` when all went well."""
    if path.exists():
        raise UsageError(f"{path} exists", hint="name a new file, or remove that one")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.rename(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another file") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _add_dimensions(
    writer: "gguf.GGUFWriter",
    library: Any,
    config: ModelConfig,
    tensors: GgufTensors,
) -> None:
    """Add the dimensions. To llama.cpp latent attention has one key head as wide as a cached row."""
    c = config
    writer.add_file_type(int(library.LlamaFileType.ALL_F32))
    writer.add_vocab_size(c.vocab_size)
    writer.add_context_length(c.max_context_tokens)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers + int(tensors.has_mtp))
    writer.add_nextn_predict_layers(int(tensors.has_mtp))
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_rope_dimension_count(c.qk_rope_head_dim)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(c.q_lora_rank)
    writer.add_kv_lora_rank(c.kv_lora_rank)
    writer.add_key_length(c.latent_dim)
    writer.add_value_length(c.kv_lora_rank)
    writer.add_key_length_mla(c.qk_head_dim)
    writer.add_value_length_mla(c.v_head_dim)
    writer.add_indexer_head_count(tensors.indexer_heads)
    writer.add_indexer_key_length(tensors.indexer_width)
    writer.add_indexer_top_k(c.max_context_tokens)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_leading_dense_block_count(c.first_k_dense_replace)
    writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    writer.add_expert_count(c.n_routed_experts)
    writer.add_expert_used_count(c.num_experts_per_tok)
    writer.add_expert_shared_count(c.n_shared_experts)
    writer.add_expert_weights_scale(c.routed_scaling_factor)
    writer.add_expert_weights_norm(c.norm_topk_prob)
    writer.add_expert_gating_func(library.ExpertGatingFuncType.SIGMOID)


def _add_tokenizer(
    writer: "gguf.GGUFWriter",
    library: Any,
    config: ModelConfig,
    model_dir: Path,
    tokenizer: Tokenizer,
) -> None:
    file = model_dir / TOKENIZER_FILE
    value = read_json_object(file)
    _check_pattern(file, value)
    texts = [f"[unused {number}]" for number in range(config.vocab_size)]
    kinds = [library.TokenType.UNUSED] * config.vocab_size
    for text, number in value["model"]["vocab"].items():
        texts[number], kinds[number] = text, library.TokenType.NORMAL
    for token in value.get("added_tokens") or []:
        special = token["id"] in tokenizer.special_ids
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = library.TokenType.CONTROL if special else library.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges([_merge_text(file, merge) for merge in value["model"].get("merges", [])])
    writer.add_add_bos_token(False)
    _add_stop_tokens(writer, model_dir, config)
    template = model_dir / TEMPLATE_FILE
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def _check_pattern(file: Path, value: dict[str, Any]) -> None:
    """Refuse a tokenizer that llama.cpp would cut text for in another way."""
    parts = (value.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
    pattern = (parts[0].get("pattern") or {}).get("Regex")
    if pattern != GLM_PATTERN:
        raise CheckpointError(
            f"{file}: the split pattern is not GLM's",
            hint="llama.cpp would cut text otherwise; export a checkpoint with GLM's tokenizer",
        )


def _merge_text(file: Path, merge: object) -> str:
    """Return a merge as ``left right``; both spellings of tokenizer.json are known."""
    if isinstance(merge, str):
        return merge
    if isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge):
        return " ".join(merge)
    raise CheckpointError(f"{file}: {merge!r} is no merge", hint="copy the file again")


def _add_stop_tokens(writer: "gguf.GGUFWriter", model_dir: Path, config: ModelConfig) -> None:
    ids = config.eos_token_ids
    if len(ids) > len(STOP_KEYS):
        message = f"{model_dir}: eos_token_id holds {len(ids)} stop tokens"
        raise CheckpointError(message, hint=f"a GGUF file has places for {len(STOP_KEYS)}")
    for key, token_id in zip(STOP_KEYS, ids, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token_id)
