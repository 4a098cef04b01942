"""Trains the reference model on one thread. The same command gives the same bits again.

Learning rate: warm-up, a long plateau, then a straight line to zero over the last steps. A run that was
stopped on the plateau can be resumed, also with another number of steps.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as fn

from .batches import DEPTHS, SESSION, Batch, Shape, batch_for_step
from .model import ModelConfig, ReferenceModel

DEPTH_WEIGHTS = (0.5, 0.25, 0.25)
BALANCE_RATE = 0.003
SEED = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Step-based learning rate."""

    steps: int
    decay_steps: int
    peak: float = 3e-3
    warmup: int = 100

    def rate(self, step: int) -> float:
        """Learning rate of a step counted from 0."""
        warm = min(1.0, (step + 1) / self.warmup)
        left = min(1.0, (self.steps - step) / self.decay_steps)
        return self.peak * warm * max(left, 0.02)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean under weights that may all be zero."""
    return (values * weights).sum() / (weights.sum() + 1e-6)


def losses(
    model: ReferenceModel,
    tokens: Tensor,
    trunk_mask: Tensor | None,
    weights: Tensor,
    positions: Tensor,
    draft_weights: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Total, main and per-depth draft losses of a batch (shapes as in ``Batch``)."""
    length = weights.shape[1]
    hidden = model.trunk(tokens[:, : length + DEPTHS], trunk_mask)
    logits = model.lm_head(hidden)
    surprise = fn.cross_entropy(
        logits[:, :length].flatten(0, 1), tokens[:, 1 : length + 1].flatten(), reduction="none"
    )
    main = weighted_mean(surprise, weights.flatten())
    drafts = []
    rows = model.draft(tokens, hidden, positions, mask, DEPTHS)
    for depth, row in enumerate(rows, start=1):
        guess = fn.log_softmax(model.lm_head(row), dim=-1)
        truth = tokens.gather(1, positions + depth + 1)
        teacher = logits.detach().gather(1, (positions + depth)[..., None].expand(-1, -1, logits.shape[-1]))
        own = -(teacher.softmax(-1) * guess).sum(-1)
        data = -guess.gather(-1, truth[..., None])[..., 0]
        drafts.append(weighted_mean(0.5 * (own + data), draft_weights[depth - 1]))
    draft = torch.stack(drafts)
    return main + (draft * torch.tensor(DEPTH_WEIGHTS)).sum(), main.detach(), draft.detach()


def make_optimizer(model: ReferenceModel) -> torch.optim.AdamW:
    """AdamW; norms and vectors are not decayed."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)


class Trainer:
    """Owns the model, the optimizer and the position in the schedule."""

    def __init__(self, tokenizer: Tokenizer, schedule: Schedule, *, compiled: bool) -> None:
        torch.manual_seed(SEED)
        self.tokenizer = tokenizer
        self.schedule = schedule
        self.model = ReferenceModel(ModelConfig(vocab_size=tokenizer.get_vocab_size()))
        self.optimizer = make_optimizer(self.model)
        self.step = 0
        self.tokens_seen = 0
        self.cpu_seconds = 0.0
        self._compiled: Any = torch.compile(losses, dynamic=False) if compiled else losses

    def run_step(self) -> tuple[Shape, Tensor, Tensor]:
        """One optimizer step; returns the shape, the main loss and the draft losses."""
        began = time.process_time()
        shape, batch = batch_for_step(self.step, SEED, self.tokenizer)
        function = losses if shape is SESSION else self._compiled
        total, main, draft = function(self.model, *_fields(batch))
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for layer in self.model.sparse_layers():
            layer.balance(BALANCE_RATE)
        self.step += 1
        self.tokens_seen += batch.weights.numel()
        self.cpu_seconds += time.process_time() - began
        return shape, main, draft

    def save(self, path: Path) -> None:
        """Write a state that ``load`` can go on from; the file appears whole or not at all."""
        state = {
            "config": self.model.config.to_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "cpu_seconds": self.cpu_seconds,
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path: Path) -> None:
        """Go on from a saved state."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens_seen = state["step"], state["tokens_seen"]
        self.cpu_seconds = state["cpu_seconds"]


def _fields(batch: Batch) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    first = (batch.tokens, batch.trunk_mask, batch.weights)
    return *first, batch.positions, batch.draft_weights, batch.mask


def load_model(path: Path) -> ReferenceModel:
    """Return the model of a saved training state, ready for evaluation."""
    state = torch.load(path, weights_only=True)
    model = ReferenceModel(ModelConfig(**state["config"]))
    model.load_state_dict(state["model"], strict=False)
    return model.eval()


def train(trainer: Trainer, directory: Path, *, log_every: int, save_every: int) -> None:
    """Run to the end of the schedule, with a log line and a saved state every so often."""
    sums: dict[str, list[float]] = {}
    began = time.monotonic()
    while trainer.step < trainer.schedule.steps:
        shape, main, draft = trainer.run_step()
        if not math.isfinite(main.item()):
            raise FloatingPointError(f"loss is {main.item()} at step {trainer.step}")
        sums.setdefault(shape.name, []).append(main.item())
        sums.setdefault(f"{shape.name}/mtp1", []).append(draft[0].item())
        sums.setdefault(f"{shape.name}/mtp3", []).append(draft[2].item())
        if trainer.step % log_every == 0:
            means = " ".join(f"{key} {sum(values) / len(values):.4f}" for key, values in sorted(sums.items()))
            print(
                f"step {trainer.step} tokens {trainer.tokens_seen} cpu {trainer.cpu_seconds / 60:.1f} min "
                f"wall {(time.monotonic() - began) / 60:.1f} min {means}",
                flush=True,
            )
            sums.clear()
        if trainer.step % save_every == 0:
            trainer.save(directory / f"state-{trainer.step:06d}.pt")
    trainer.save(directory / "state-final.pt")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("directory", type=Path, help="where states are saved")
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--decay-steps", type=int, default=1600)
    parser.add_argument("--resume", type=Path, help="a saved state to go on from")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile (slower)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    schedule = Schedule(steps=arguments.steps, decay_steps=arguments.decay_steps)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    trainer = Trainer(tokenizer, schedule, compiled=not arguments.no_compile)
    if arguments.resume:
        trainer.load(arguments.resume)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    train(trainer, arguments.directory, log_every=arguments.log_every, save_every=arguments.save_every)


if __name__ == "__main__":
    main()
