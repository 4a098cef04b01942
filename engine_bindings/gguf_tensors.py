"""A checkpoint's tensors under the names and in the layout of a GGUF file of the ``glm-dsa`` architecture.

Names and layouts are facts of llama.cpp: rotary pairs stay interleaved, the experts of a layer are stacked,
and ``kv_b_proj`` is split into its key half, turned, and its value half. A matrix stays [out, in].
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from engine_bindings.errors import CheckpointError
from engine_bindings.reference.config import ModelConfig
from engine_bindings.reference.tensors import Tensors

FloatArray = NDArray[np.float32]
Named = Iterator[tuple[str, FloatArray]]

# llama.cpp rotates the indexer's keys in blocks of 64; another width ends its process.
INDEXER_BLOCK = 64

_EXPERT_NAMES = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
_SHARED_NAMES = {"gate_proj": "ffn_gate_shexp", "up_proj": "ffn_up_shexp", "down_proj": "ffn_down_shexp"}
_DENSE_NAMES = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}


class _Mapper:
    """Takes checked tensors out of a checkpoint and names them for GGUF."""

    def __init__(self, config: ModelConfig, tensors: Tensors) -> None:
        self.config = config
        self.tensors = tensors
        head = f"model.layers.{config.mtp_layer}.eh_proj.weight"
        self.has_mtp = config.num_nextn_predict_layers != 0 and head in tensors
        self.indexer_heads, self.indexer_width = self._indexer_size()

    def _indexer_size(self) -> tuple[int, int]:
        """Heads and key width of the indexer, (1, 64) when the checkpoint has none."""
        name = "model.layers.0.self_attn.indexer"
        keys = self.tensors.stored.get(f"{name}.wk.weight")
        heads = self.tensors.stored.get(f"{name}.weights_proj.weight")
        if keys is None or heads is None:
            return 1, INDEXER_BLOCK
        width = keys.shape[0]
        if width % INDEXER_BLOCK:
            message = f"{keys.file}: the indexer's keys are {width} wide"
            raise CheckpointError(
                message, hint=f"llama.cpp takes multiples of {INDEXER_BLOCK}; leave the indexer's tensors out"
            )
        return heads.shape[0], width

    def all(self) -> Named:
        """Yield every tensor of the file."""
        c = self.config
        yield "token_embd.weight", self.tensors.take("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
        yield "output_norm.weight", self.tensors.take("model.norm.weight", c.hidden_size)
        yield "output.weight", self.tensors.take("lm_head.weight", c.vocab_size, c.hidden_size)
        for index in range(c.num_hidden_layers):
            yield from self._layer(index, dense=index < c.first_k_dense_replace)
        if self.has_mtp:
            yield from self._layer(c.mtp_layer, dense=False)
            yield from self._mtp_parts()

    def _layer(self, index: int, *, dense: bool) -> Named:
        source, block, width = f"model.layers.{index}", f"blk.{index}", self.config.hidden_size
        take = self.tensors.take
        yield f"{block}.attn_norm.weight", take(f"{source}.input_layernorm.weight", width)
        yield f"{block}.ffn_norm.weight", take(f"{source}.post_attention_layernorm.weight", width)
        yield from self._attention(f"{source}.self_attn", block)
        yield from self._indexer(f"{source}.self_attn.indexer", block)
        if dense:
            yield from self._gated(f"{source}.mlp", block, _DENSE_NAMES, self.config.intermediate_size)
        else:
            yield from self._experts(f"{source}.mlp", block)

    def _attention(self, source: str, block: str) -> Named:
        c, take = self.config, self.tensors.take
        heads, latent = c.num_attention_heads, c.kv_lora_rank
        yield f"{block}.attn_q_a.weight", take(f"{source}.q_a_proj.weight", c.q_lora_rank, c.hidden_size)
        yield f"{block}.attn_q_a_norm.weight", take(f"{source}.q_a_layernorm.weight", c.q_lora_rank)
        query = take(f"{source}.q_b_proj.weight", heads * c.qk_head_dim, c.q_lora_rank)
        yield f"{block}.attn_q_b.weight", query
        cached = take(f"{source}.kv_a_proj_with_mqa.weight", latent + c.qk_rope_head_dim, c.hidden_size)
        yield f"{block}.attn_kv_a_mqa.weight", cached
        yield f"{block}.attn_kv_a_norm.weight", take(f"{source}.kv_a_layernorm.weight", latent)
        both = take(f"{source}.kv_b_proj.weight", heads * (c.qk_nope_head_dim + c.v_head_dim), latent)
        key, value = np.split(both.reshape(heads, -1, latent), [c.qk_nope_head_dim], axis=1)
        yield f"{block}.attn_k_b.weight", np.ascontiguousarray(key.transpose(0, 2, 1))
        yield f"{block}.attn_v_b.weight", np.ascontiguousarray(value)
        output = take(f"{source}.o_proj.weight", c.hidden_size, heads * c.v_head_dim)
        yield f"{block}.attn_output.weight", output

    def _indexer(self, source: str, block: str) -> Named:
        """Yield the indexer's tensors; zeros where there are none, as its budget holds every key anyway."""
        heads, width, hidden = self.indexer_heads, self.indexer_width, self.config.hidden_size
        parts: tuple[tuple[str, str, tuple[int, ...]], ...] = (
            ("wq_b.weight", "attn_q_b.weight", (heads * width, self.config.q_lora_rank)),
            ("wk.weight", "attn_k.weight", (width, hidden)),
            ("weights_proj.weight", "proj.weight", (heads, hidden)),
            ("k_norm.weight", "k_norm.weight", (width,)),
            ("k_norm.bias", "k_norm.bias", (width,)),
        )
        for name, gguf_name, shape in parts:
            known = f"{source}.{name}" in self.tensors
            value = self.tensors.take(f"{source}.{name}", *shape) if known else np.zeros(shape, np.float32)
            yield f"{block}.indexer.{gguf_name}", value

    def _experts(self, source: str, block: str) -> Named:
        c, take = self.config, self.tensors.take
        yield f"{block}.ffn_gate_inp.weight", take(f"{source}.gate.weight", c.n_routed_experts, c.hidden_size)
        bias = take(f"{source}.gate.e_score_correction_bias", c.n_routed_experts)
        yield f"{block}.exp_probs_b.bias", bias
        experts = [
            dict(self._gated(f"{source}.experts.{expert}", block, _EXPERT_NAMES, c.moe_intermediate_size))
            for expert in range(c.n_routed_experts)
        ]
        for name in experts[0]:
            yield name, np.stack([expert[name] for expert in experts])
        shared = c.moe_intermediate_size * c.n_shared_experts
        yield from self._gated(f"{source}.shared_experts", block, _SHARED_NAMES, shared)

    def _gated(self, source: str, block: str, names: Mapping[str, str], inner: int) -> Named:
        width = self.config.hidden_size
        for name, gguf_name in names.items():
            shape = (width, inner) if name == "down_proj" else (inner, width)
            yield f"{block}.{gguf_name}.weight", self.tensors.take(f"{source}.{name}.weight", *shape)

    def _mtp_parts(self) -> Named:
        width, index = self.config.hidden_size, self.config.mtp_layer
        source, block, take = f"model.layers.{index}", f"blk.{index}.nextn", self.tensors.take
        yield f"{block}.eh_proj.weight", take(f"{source}.eh_proj.weight", width, 2 * width)
        yield f"{block}.enorm.weight", take(f"{source}.enorm.weight", width)
        yield f"{block}.hnorm.weight", take(f"{source}.hnorm.weight", width)
        yield f"{block}.shared_head_norm.weight", take(f"{source}.shared_head.norm.weight", width)


class GgufTensors:
    """The tensors of one file.

    Attributes:
        by_name: float32 arrays, outermost dimension first.
        has_mtp: an MTP layer follows the model's own.
        indexer_heads, indexer_width: sizes of the sparse attention's indexer.
    """

    def __init__(self, config: ModelConfig, tensors: Tensors) -> None:
        """Take and rearrange all tensors. Raises CheckpointError naming what is missing or misshapen."""
        mapper = _Mapper(config, tensors)
        self.by_name: dict[str, FloatArray] = dict(mapper.all())
        self.has_mtp = mapper.has_mtp
        self.indexer_heads, self.indexer_width = mapper.indexer_heads, mapper.indexer_width
