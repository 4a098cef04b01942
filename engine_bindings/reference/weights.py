"""A checkpoint's tensors, rearranged so that a layer needs few and large matrix products.

Every matrix is stored as [in, out], for rows multiplied from the left. What is linear is multiplied out here
once:

- the gain of a norm goes into the rows of the matrix behind it, for a row divided by its length in all places
  but the attention's, so that no mean is taken;
- the key half of ``kv_b_proj`` goes into ``q_b_proj`` and its value half into ``o_proj``, so attention works
  on the cached latent rows directly ("absorbed" multi-head latent attention);
- a second, turned copy of every rotary column makes the rotation two products and one sum;
- all experts of a layer, the shared ones behind the routed ones, are one wide feed-forward layer, whose inner
  units are scaled by the router's weights.

Gates are stored negated, because ``silu(g) * u`` is ``-(-g * u) / (1 + exp(-g))``; the minus is in the matrix
behind.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine_bindings.errors import CheckpointError
from engine_bindings.reference.config import ModelConfig
from engine_bindings.reference.tensors import Tensors, read_tensors

FloatArray = NDArray[np.float32]

LARGEST_PLAIN_SCORE = (
    80.0  # exp(80) * 4096 keys stays below the largest float32, exp(-80) above the denormals
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Multi-head latent attention of one layer.

    D is the hidden size, Q and C the query's and the cache's low rank, R the rotary width, H the heads.

    Attributes:
        inner: [D, Q + 2R + C] to the low-rank query, the turned and the plain rope key, and the latent row.
        norms: [row head + Q + 2R + C, Q + 2R + C] mean squares (with eps) from the squares of residual and
            product, so that one product gives the divisors of the layer's input norm and of both low-rank
            norms; the same array in all layers, which keeps it in the CPU's cache.
        query: [Q, H * (2R + C)] to the turned rope, the plain rope and the latent part of every head, scaled.
        output: [C * H, D] from the mixed latent rows of all heads.
        shifted: whether scores may be so large that the softmax must be shifted by the largest one.
    """

    inner: FloatArray
    norms: FloatArray
    query: FloatArray
    output: FloatArray
    shifted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpWeights:
    """Feed-forward half of one layer; E experts of inner width I, and the shared ones.

    Attributes:
        inner: [D, E + G * I + G * I] to the router, the gates (both negated) and the up projections of G
            groups; a dense layer has no router and one group.
        bias: [E] correction that is added for the choice of experts only; empty in a dense layer.
        down: [G * I, D].
    """

    inner: FloatArray
    bias: FloatArray
    down: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One transformer layer."""

    attention: AttentionWeights
    mlp: MlpWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpWeights:
    """The multi-token-prediction layer.

    Attributes:
        embedding: [V, D] the embedding half of ``eh_proj`` applied to every normed embedding.
        hidden: [D, D] the hidden half of ``eh_proj``.
        head: [D, V] the output matrix with the gain of ``shared_head.norm``.
    """

    embedding: FloatArray
    hidden: FloatArray
    layer: LayerWeights
    head: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Everything the forward pass multiplies with.

    Attributes:
        embedding: [V, D].
        norm: [D] gain of the final norm, for a row divided by its length.
        head: [D, V].
        mtp: the MTP layer, or None when the checkpoint has none.
        digest: SHA-256 of the weight files, in hexadecimal.
    """

    embedding: FloatArray
    layers: tuple[LayerWeights, ...]
    norm: FloatArray
    head: FloatArray
    mtp: MtpWeights | None
    digest: str

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        layers = [*self.layers, *([self.mtp.layer] if self.mtp else [])]
        arrays = [self.embedding, self.norm, self.head]
        for layer in layers:
            attention, mlp = layer.attention, layer.mlp
            arrays += [attention.inner, attention.norms, attention.query, attention.output]
            arrays += [mlp.inner, mlp.bias, mlp.down]
        arrays += [self.mtp.embedding, self.mtp.hidden, self.mtp.head] if self.mtp else []
        return sum(array.nbytes for array in arrays)


def row_head_width(config: ModelConfig) -> int:
    """Width of a residual row, the constant behind it and the padding to a multiple of 16 floats."""
    return -(-(config.hidden_size + 1) // 16) * 16


def _turned(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn neighbouring pairs (a, b) of the last axis into (-b, a), which the sine multiplies."""
    pairs = columns.reshape(*columns.shape[:-1], -1, 2)
    return np.stack((-pairs[..., 1], pairs[..., 0]), axis=-1).reshape(columns.shape)


def _contiguous(array: NDArray[np.floating]) -> FloatArray:
    return np.ascontiguousarray(array, np.float32)


class _Builder:
    """Reads and rearranges the tensors of one checkpoint."""

    def __init__(self, config: ModelConfig, tensors: Tensors) -> None:
        self.config = config
        self.tensors = tensors
        self.norms = self._norm_matrix()

    def take(self, name: str, *shape: int) -> NDArray[np.float64]:
        return self.tensors.take(name, *shape).astype(np.float64)

    def matrix(self, name: str, out_width: int, in_width: int) -> NDArray[np.float64]:
        """Return a weight as [in, out]."""
        return self.take(f"{name}.weight", out_width, in_width).T

    def layer(self, index: int, *, dense: bool) -> LayerWeights:
        prefix = f"model.layers.{index}"
        mlp = self._dense_mlp(prefix) if dense else self._sparse_mlp(prefix)
        return LayerWeights(attention=self._attention(prefix), mlp=mlp)

    def _attention(self, prefix: str) -> AttentionWeights:
        c, name = self.config, f"{prefix}.self_attn"
        gain = self.take(f"{prefix}.input_layernorm.weight", c.hidden_size)[:, None]
        query_in = gain * self.matrix(f"{name}.q_a_proj", c.q_lora_rank, c.hidden_size)
        cache_in = gain * self.matrix(
            f"{name}.kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size
        )
        latent, rope_key = cache_in[:, : c.kv_lora_rank], cache_in[:, c.kv_lora_rank :]
        query, output = self._absorbed(name)
        return AttentionWeights(
            inner=_contiguous(np.hstack((query_in, _turned(rope_key), rope_key, latent))),
            norms=self.norms,
            query=_contiguous(query),
            output=_contiguous(output),
            shifted=self._score_bound(query, rope_key) > LARGEST_PLAIN_SCORE,
        )

    def _absorbed(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Query and output matrix with both halves of ``kv_b_proj`` and the low-rank norms' gains inside."""
        c = self.config
        heads, nope, values = c.num_attention_heads, c.qk_nope_head_dim, c.v_head_dim
        query = self.matrix(f"{name}.q_b_proj", heads * c.qk_head_dim, c.q_lora_rank)
        query = self.take(f"{name}.q_a_layernorm.weight", c.q_lora_rank)[:, None] * query
        query = (query * c.qk_head_dim**-0.5).reshape(c.q_lora_rank, heads, c.qk_head_dim)
        both = self.matrix(f"{name}.kv_b_proj", heads * (nope + values), c.kv_lora_rank)
        both = self.take(f"{name}.kv_a_layernorm.weight", c.kv_lora_rank)[:, None] * both
        key, value = np.split(both.reshape(c.kv_lora_rank, heads, nope + values), [nope], axis=2)
        output = self.matrix(f"{name}.o_proj", c.hidden_size, heads * values).reshape(
            heads, values, c.hidden_size
        )
        query_latent = np.einsum("qhn,chn->qhc", query[:, :, :nope], key)
        query_rope = query[:, :, nope:]
        query = np.concatenate((_turned(query_rope), query_rope, query_latent), axis=2)
        mixed = np.einsum("chv,hvd->chd", value, output)
        return query.reshape(c.q_lora_rank, -1), mixed.reshape(-1, c.hidden_size)

    def _norm_matrix(self) -> FloatArray:
        """Matrix from squares to divisors' squares; see ``AttentionWeights.norms``.

        With product y = W x and input norm s = sqrt(mean(x^2) + eps), the low-rank norm of y / s is
        y / sqrt(mean(y^2) + eps * s^2), and a rope key is y / s.
        """
        c, head = self.config, row_head_width(self.config)
        query, rope = c.q_lora_rank, 2 * c.qk_rope_head_dim
        parts = {"query": slice(0, query), "rope": slice(query, query + rope)}
        parts["latent"] = slice(query + rope, query + rope + c.kv_lora_rank)
        matrix = np.zeros((head + parts["latent"].stop, parts["latent"].stop))
        matrix[: c.hidden_size + 1] = c.rms_norm_eps / c.hidden_size
        matrix[: c.hidden_size + 1, parts["rope"]] = 1 / c.hidden_size
        for part in (parts["query"], parts["latent"]):
            matrix[head + part.start : head + part.stop, part] = 1 / (part.stop - part.start)
        return _contiguous(matrix)

    def _score_bound(self, query: NDArray[np.float64], rope_key: NDArray[np.float64]) -> float:
        """Largest score any input can give: normed rows are no longer than the root of their width."""
        c, rope = self.config, self.config.qk_rope_head_dim
        key = float(np.linalg.norm(rope_key, 2)) * c.hidden_size**0.5
        largest = 0.0
        for head in np.moveaxis(query.reshape(c.q_lora_rank, c.num_attention_heads, -1), 1, 0):
            plain, latent = head[:, rope : 2 * rope], head[:, 2 * rope :]
            bound = np.linalg.norm(plain, 2) * key + np.linalg.norm(latent, 2) * c.kv_lora_rank**0.5
            largest = max(largest, float(bound) * c.q_lora_rank**0.5)
        return largest

    def _dense_mlp(self, prefix: str) -> MlpWeights:
        gain = self._mlp_gain(prefix)
        gate, up, down = self._gated(f"{prefix}.mlp", self.config.intermediate_size)
        inner = gain * np.hstack((-gate, up))
        return MlpWeights(inner=_contiguous(inner), bias=np.zeros(0, np.float32), down=_contiguous(-down))

    def _sparse_mlp(self, prefix: str) -> MlpWeights:
        c, name = self.config, f"{prefix}.mlp"
        router = self.matrix(f"{name}.gate", c.n_routed_experts, c.hidden_size)
        experts = [
            self._gated(f"{name}.experts.{e}", c.moe_intermediate_size) for e in range(c.n_routed_experts)
        ]
        shared = self._gated(f"{name}.shared_experts", c.moe_intermediate_size * c.n_shared_experts)
        gates, ups, downs = zip(*experts, shared, strict=True)
        inner = self._mlp_gain(prefix) * np.hstack((-router, *(-gate for gate in gates), *ups))
        down = np.vstack((*(c.routed_scaling_factor * down for down in downs[:-1]), downs[-1]))
        bias = self.take(f"{name}.gate.e_score_correction_bias", c.n_routed_experts)
        return MlpWeights(inner=_contiguous(inner), bias=_contiguous(bias), down=_contiguous(-down))

    def _mlp_gain(self, prefix: str) -> NDArray[np.float64]:
        return self.row_gain(f"{prefix}.post_attention_layernorm.weight")[:, None]

    def row_gain(self, name: str) -> NDArray[np.float64]:
        """Return a norm's gain for rows that were divided by their length, not by their root mean square."""
        gain: NDArray[np.float64] = self.take(name, self.config.hidden_size) * self.config.hidden_size**0.5
        return gain

    def _gated(
        self, name: str, inner: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        width = self.config.hidden_size
        gate = self.matrix(f"{name}.gate_proj", inner, width)
        up = self.matrix(f"{name}.up_proj", inner, width)
        return gate, up, self.matrix(f"{name}.down_proj", width, inner)

    def mtp(self, embedding: NDArray[np.float64], head: NDArray[np.float64]) -> MtpWeights:
        c, prefix = self.config, f"model.layers.{self.config.mtp_layer}"
        joined = self.matrix(f"{prefix}.eh_proj", c.hidden_size, 2 * c.hidden_size)
        mean_square = (embedding**2).mean(-1, keepdims=True) + c.rms_norm_eps
        normed = embedding / np.sqrt(mean_square) * self.take(f"{prefix}.enorm.weight", c.hidden_size)
        hidden_gain = self.row_gain(f"{prefix}.hnorm.weight")[:, None]
        head_gain = self.row_gain(f"{prefix}.shared_head.norm.weight")[:, None]
        return MtpWeights(
            embedding=_contiguous(normed @ joined[: c.hidden_size]),
            hidden=_contiguous(hidden_gain * joined[c.hidden_size :]),
            layer=self.layer(c.mtp_layer, dense=False),
            head=_contiguous(head_gain * head),
        )

    def has_mtp(self) -> bool:
        """Whether there is an MTP layer. Raises CheckpointError when config and tensors disagree."""
        name = f"model.layers.{self.config.mtp_layer}.eh_proj.weight"
        asked = self.config.num_nextn_predict_layers
        if asked == 1 and name not in self.tensors:
            message = (
                f"{self.tensors.model_dir}: num_nextn_predict_layers is 1, but tensor {name!r} is missing"
            )
            hint = "set it to 0 to run without an MTP head, or use weights that kept the layer"
            raise CheckpointError(message, hint=hint)
        return asked != 0 and name in self.tensors


def read_weights(model_dir: Path, config: ModelConfig) -> Weights:
    """Read a directory's tensors and rearrange them. Raises CheckpointError."""
    builder = _Builder(config, read_tensors(model_dir))
    dense = config.first_k_dense_replace
    embedding = builder.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    head = builder.matrix("lm_head", config.vocab_size, config.hidden_size)
    return Weights(
        embedding=_contiguous(embedding),
        layers=tuple(builder.layer(i, dense=i < dense) for i in range(config.num_hidden_layers)),
        norm=_contiguous(builder.row_gain("model.norm.weight")),
        head=_contiguous(head),
        mtp=builder.mtp(embedding, head) if builder.has_mtp() else None,
        digest=builder.tensors.digest,
    )
