"""The architecture written down once more, in float64, with no thought of speed.

Nothing is absorbed, fused, cached or batched, so it shares no trick with the engine that it checks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class NaiveModel:
    """Computes everything anew for every call."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.c = config
        self.t = {name: np.asarray(value, np.float64) for name, value in tensors.items()}

    def norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.t[f"{name}.weight"]

    def rotate(self, vector: Array, position: int) -> Array:
        turned = vector.copy()
        width = len(vector)
        for pair in range(width // 2):
            angle = position * self.c["rope_parameters"]["rope_theta"] ** (-2 * pair / width)
            even, odd = vector[2 * pair], vector[2 * pair + 1]
            turned[2 * pair] = even * math.cos(angle) - odd * math.sin(angle)
            turned[2 * pair + 1] = odd * math.cos(angle) + even * math.sin(angle)
        return turned

    def attention(self, x: Array, name: str, first: int) -> Array:
        """Causal attention over rows x [S, D] at positions first, first + 1, ..."""
        c, t = self.c, self.t
        heads, nope, latent = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]
        query = self.norm(x @ t[f"{name}.q_a_proj.weight"].T, f"{name}.q_a_layernorm")
        query = (query @ t[f"{name}.q_b_proj.weight"].T).reshape(len(x), heads, -1)
        both = x @ t[f"{name}.kv_a_proj_with_mqa.weight"].T
        keys = self.norm(both[:, :latent], f"{name}.kv_a_layernorm") @ t[f"{name}.kv_b_proj.weight"].T
        keys = keys.reshape(len(x), heads, -1)
        mixed = np.zeros((len(x), heads, c["v_head_dim"]))
        for row in range(len(x)):
            for head in range(heads):
                q_rope = self.rotate(query[row, head, nope:], first + row)
                scores = np.array(
                    [
                        query[row, head, :nope] @ keys[other, head, :nope]
                        + q_rope @ self.rotate(both[other, latent:], first + other)
                        for other in range(row + 1)
                    ]
                ) / math.sqrt(query.shape[2])
                weights = np.exp(scores - scores.max())
                mixed[row, head] = weights / weights.sum() @ keys[: row + 1, head, nope:]
        return mixed.reshape(len(x), -1) @ t[f"{name}.o_proj.weight"].T

    def gated(self, x: Array, name: str) -> Array:
        gate, up = x @ self.t[f"{name}.gate_proj.weight"].T, x @ self.t[f"{name}.up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.t[f"{name}.down_proj.weight"].T

    def mlp(self, x: Array, name: str) -> Array:
        if f"{name}.gate.weight" not in self.t:
            return self.gated(x, name)
        added = self.gated(x, f"{name}.shared_experts")
        for row in range(len(x)):
            score = 1 / (1 + np.exp(-(self.t[f"{name}.gate.weight"] @ x[row])))
            order = np.argsort(-(score + self.t[f"{name}.gate.e_score_correction_bias"]), kind="stable")
            best = order[: self.c["num_experts_per_tok"]]
            total = score[best].sum() if self.c["norm_topk_prob"] else 1.0
            for expert in best:
                weight = score[expert] / total * self.c["routed_scaling_factor"]
                added[row] += weight * self.gated(x[row], f"{name}.experts.{expert}")
        return added

    def layer(self, x: Array, index: int, first: int = 0) -> Array:
        name = f"model.layers.{index}"
        x = x + self.attention(self.norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", first)
        return x + self.mlp(self.norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")

    def hidden(self, tokens: Sequence[int]) -> Array:
        """Rows after the final norm."""
        x = self.t["model.embed_tokens.weight"][list(tokens)]
        for index in range(self.c["num_hidden_layers"]):
            x = self.layer(x, index)
        return self.norm(x, "model.norm")

    def logits(self, tokens: Sequence[int]) -> Array:
        return self.hidden(tokens) @ self.t["lm_head.weight"].T

    def draft(self, tokens: Sequence[int], first: int, depth: int) -> tuple[list[int], list[Array]]:
        """Chain of greedy drafts behind the last token, from head rows of positions ``first`` on."""
        index = self.c["num_hidden_layers"]
        name = f"model.layers.{index}"
        hidden = list(self.hidden(tokens[:-1])[first:])
        after, drafts, logits = list(tokens[first + 1 :]), [], []
        for _ in range(depth):
            embedded = self.norm(self.t["model.embed_tokens.weight"][after], f"{name}.enorm")
            joined = np.hstack((embedded, self.norm(np.array(hidden), f"{name}.hnorm")))
            rows = self.layer(joined @ self.t[f"{name}.eh_proj.weight"].T, index, first)
            logits.append(self.norm(rows[-1], f"{name}.shared_head.norm") @ self.t["lm_head.weight"].T)
            drafts.append(int(logits[-1].argmax()))
            hidden.append(rows[-1])
            after.append(drafts[-1])
        return drafts, logits
