"""A torch twin of the shipped model, used for training only.

The architecture is GLM-5's (``glm_moe_dsa``) at toy size: multi-head latent attention, one dense layer,
then mixture-of-experts layers with a sigmoid router, and one multi-token-prediction (MTP) layer on top.
Two things differ from an inference engine, both for speed: all experts are computed for all tokens with
one matrix product (cheaper than gathering at this size), and the sparse-attention indexer is absent (its
``index_topk`` is larger than the context, so it would select every key).

Shapes use B rows, S positions, D hidden, H heads, E experts, I expert width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as fn


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Dimensions of the shipped model; the names follow the Hugging Face configuration."""

    vocab_size: int = 640
    hidden_size: int = 96
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    q_lora_rank: int = 48
    kv_lora_rank: int = 32
    qk_nope_head_dim: int = 16
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    intermediate_size: int = 192
    moe_intermediate_size: int = 48
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.5
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 8192
    index_topk: int = 8192
    index_n_heads: int = 1
    index_head_dim: int = 64

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def to_dict(self) -> dict[str, int | float]:
        """Plain dictionary for checkpoints."""
        return asdict(self)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, rope/2] of the rotary positions."""
    half = config.qk_rope_head_dim // 2
    exponent = torch.arange(half, dtype=torch.float64) / half
    angle = torch.arange(length, dtype=torch.float64)[:, None] * config.rope_theta**-exponent
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved rotary embedding: pairs are neighbouring elements.

    x [B, H or 1, S, rope]; cos and sin [B or 1, 1, S, rope/2].
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


class LatentAttention(nn.Module):
    """Multi-head latent attention; keys and values come from one low-rank row per position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, heads = config.hidden_size, config.num_attention_heads
        self.q_a_proj = nn.Linear(width, config.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, heads * config.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, config.kv_lora_rank + config.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, config.rms_norm_eps)
        kv_width = heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.kv_b_proj = nn.Linear(config.kv_lora_rank, kv_width, bias=False)
        self.o_proj = nn.Linear(heads * config.v_head_dim, width, bias=False)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries [B, H, S, qk] of x [B, S, D]."""
        c = self.config
        flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        query = flat.unflatten(-1, (c.num_attention_heads, c.qk_head_dim)).transpose(1, 2)
        nope, rope = query.split([c.qk_nope_head_dim, c.qk_rope_head_dim], dim=-1)
        return torch.cat((nope, rotate(rope, cos, sin)), dim=-1)

    def keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [B, H, S, qk] and values [B, H, S, v] of x [B, S, D]."""
        c = self.config
        latent, rope = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], dim=-1)
        flat = self.kv_b_proj(self.kv_a_layernorm(latent))
        both = flat.unflatten(-1, (c.num_attention_heads, -1)).transpose(1, 2)
        nope, value = both.split([c.qk_nope_head_dim, c.v_head_dim], dim=-1)
        rope = rotate(rope[:, None], cos, sin).expand(-1, c.num_attention_heads, -1, -1)
        return torch.cat((nope, rope), dim=-1), value

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of x [B, S, D]."""
        return self.queries(x, cos, sin), *self.keys(x, cos, sin)

    def output(self, mixed: Tensor) -> Tensor:
        """Mix the heads [B, H, S, v] back into [B, S, D]."""
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """Self-attention over x [B, S, D] under an additive mask [B, 1, S, S], or causal without one."""
        query, key, value = self.project(x, cos, sin)
        mixed = fn.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.output(mixed)


class DenseMlp(nn.Module):
    """Gated feed-forward layer (SwiGLU)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        projected: Tensor = self.down_proj(fn.silu(gate) * up)
        return projected


class SparseMlp(nn.Module):
    """Mixture of experts: sigmoid router with a correction bias for the choice, plus shared experts.

    The shared experts sit behind the routed ones in the same fused matrices, with a gate of one.
    """

    router_bias: Tensor
    load: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.groups = config.n_routed_experts + config.n_shared_experts
        inner = self.groups * config.moe_intermediate_size
        self.router = nn.Linear(config.hidden_size, config.n_routed_experts, bias=False)
        self.gate_up = nn.Linear(config.hidden_size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, config.hidden_size, bias=False)
        self.register_buffer("router_bias", torch.zeros(config.n_routed_experts))
        self.register_buffer("load", torch.zeros(config.n_routed_experts), persistent=False)

    def gates(self, x: Tensor) -> Tensor:
        """Weight of every routed expert for every token [B, S, E]; zero where it was not chosen."""
        score = torch.sigmoid(self.router(x))
        chosen = (score.detach() + self.router_bias).topk(self.config.num_experts_per_tok, dim=-1).indices
        mask = torch.zeros_like(score).scatter(-1, chosen, 1.0)
        if self.training:
            self.load += mask.detach().sum((0, 1))
        kept = score * mask
        return kept * (self.config.routed_scaling_factor / (kept.sum(-1, keepdim=True) + 1e-20))

    def forward(self, x: Tensor) -> Tensor:
        """All experts as one wide feed-forward layer whose inner units are scaled by the gates."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        ones = torch.ones(*x.shape[:-1], self.config.n_shared_experts)
        weight = torch.cat((self.gates(x), ones), dim=-1)
        inner = (fn.silu(gate) * up).unflatten(-1, (self.groups, -1)) * weight[..., None]
        projected: Tensor = self.down(inner.flatten(-2))
        return projected

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Nudge the choice towards equal load (the bias never enters the weights)."""
        self.router_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, config: ModelConfig, *, sparse: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LatentAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SparseMlp(config) if sparse else DenseMlp(config.hidden_size, config.intermediate_size)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Second half of the layer, with its residual."""
        added: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return added

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform x [B, S, D]."""
        return self.feed_forward(x + self.self_attn(self.input_layernorm(x), cos, sin, mask))


class MtpHead(nn.Module):
    """The multi-token-prediction layer: joins the next token's embedding with a hidden row, then one block.

    At depth 1 the hidden row is the main model's after its final norm; deeper steps feed the head's own
    raw output.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = Block(config, sparse=True)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def join(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Input of the block; the embedding comes first. All [B, S, D]."""
        joined: Tensor = self.eh_proj(torch.cat((self.enorm(embedding), self.hnorm(hidden)), dim=-1))
        return joined


@dataclass(slots=True)
class Chain:
    """Keys and values a recursive draft may look at: the depth-1 rows, and its own deeper rows."""

    key: Tensor
    value: Tensor
    mask: Tensor
    own: list[tuple[Tensor, Tensor]]


def chain_attention(query: Tensor, chain: Chain) -> Tensor:
    """Attention over the depth-1 rows under a mask [B, 1, A, S] plus one own row per deeper step.

    query [B, H, A, qk]; every own key and value is aligned with the query's position.
    """
    scale = query.shape[-1] ** -0.5
    scores = (query * scale) @ chain.key.transpose(-1, -2) + chain.mask
    if not chain.own:
        only: Tensor = scores.softmax(-1) @ chain.value
        return only
    extra = [(query * key).sum(-1, keepdim=True) * scale for key, _ in chain.own]
    weight = torch.cat((scores, *extra), dim=-1).softmax(-1)
    width = chain.key.shape[2]
    mixed = weight[..., :width] @ chain.value
    for index, (_, value) in enumerate(chain.own):
        mixed = mixed + weight[..., width + index : width + index + 1] * value
    return mixed


class ReferenceModel(nn.Module):
    """Main model and MTP head with shared embedding and output matrix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        dense = config.first_k_dense_replace
        self.layers = nn.ModuleList(Block(config, sparse=i >= dense) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mtp = MtpHead(config)
        cos, sin = rope_tables(config, config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)

    def trunk(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden rows after the final norm [B, S, D] of tokens [B, S]; ``mask`` is added to all scores."""
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[None, None, : tokens.shape[1]], self.sin[None, None, : tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        normed: Tensor = self.norm(x)
        return normed

    def open_chain(self, tokens: Tensor, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Chain]:
        """Return the head's depth-1 inputs [B, S, D] and cached rows, for every position of ``mask``."""
        length = mask.shape[-1]
        joined = self.mtp.join(self.embed_tokens(tokens[:, 1 : length + 1]), hidden[:, :length])
        cos, sin = self.cos[None, None, :length], self.sin[None, None, :length]
        block = self.mtp.block
        key, value = block.self_attn.keys(block.input_layernorm(joined), cos, sin)
        return joined, Chain(key=key, value=value, mask=mask, own=[])

    def draft(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor, depths: int
    ) -> list[Tensor]:
        """Head rows before the output matrix, one [B, A, D] per depth, for the chosen positions [B, A].

        The row of position t at depth d has read token t + d and predicts token t + d + 1; its rotary
        position is t + d - 1. ``tokens`` is [B, S + depths or more], ``hidden`` [B, S or more, D] comes from
        the trunk, and ``mask`` [B, 1, A, S] is added to the scores of the depth-1 rows (it says which of
        them the head's cache would hold).
        """
        joined, chain = self.open_chain(tokens, hidden, mask)
        x = joined.gather(1, positions[..., None].expand(-1, -1, joined.shape[-1]))
        attention, rows = self.mtp.block.self_attn, list[Tensor]()
        for depth in range(1, depths + 1):
            at = positions + depth - 1
            cos, sin = self.cos[at][:, None], self.sin[at][:, None]
            normed = self.mtp.block.input_layernorm(x)
            if depth > 1:
                chain.own.append(attention.keys(normed, cos, sin))
            mixed = chain_attention(attention.queries(normed, cos, sin), chain)
            state = self.mtp.block.feed_forward(x + attention.output(mixed))
            rows.append(self.mtp.norm(state))
            x = self.mtp.join(self.embed_tokens(tokens.gather(1, at + 2)), state)
        return rows

    def sparse_layers(self) -> list[SparseMlp]:
        """Every mixture-of-experts layer, the MTP one included."""
        return [module for module in self.modules() if isinstance(module, SparseMlp)]
