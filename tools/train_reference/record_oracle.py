"""Records what other implementations say about the checkpoint, for the tests of the shipped engine.

The main model is run in Hugging Face transformers; the MTP head, which transformers does not have, in
this folder's torch model. Arrays of the written ``.npz`` file:

- ``tokens`` [N] ids of all texts behind one another, ``lengths`` [texts], ``names`` [texts]
- ``top_ids``, ``top_logits`` [N, 16] best logits of every position, in falling order
- ``full_at`` [F] indices into N and ``full_logits`` [F, V] whole rows for some positions
- ``mtp_at`` [M] indices into N of the last row before a draft. For a chain of four greedy drafts after the
  true next token: ``mtp_tokens`` [M, 4], ``mtp_top_ids`` and ``mtp_top_logits`` [M, 4, 8], where the head has
  cached every earlier row of the text; ``mtp_empty_*`` is the same with an empty head cache before the draft
- ``versions`` as JSON text
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GlmMoeDsaForCausalLM

from .corpus import Dialogue, agent, recall, render, structured, talk
from .export import read_checkpoint
from .infer import Decoder
from .model import ReferenceModel

SEED = 1905
MOST_TOKENS = 300
BEST = 16
FULL_ROWS = 40
MTP_STARTS = 5
MTP_DEPTH = 4
MTP_BEST = 8

TEXTS: dict[str, Callable[[random.Random], Dialogue]] = {
    "story": lambda rng: talk.story(rng, 2),
    "foreign": lambda rng: talk.foreign_words(rng, 5),
    "json": lambda rng: structured.records(rng, 5),
    "code": lambda rng: structured.functions(rng, 4),
    "list": lambda rng: talk.listing(rng, 14),
    "copy": lambda rng: recall.repeat(rng, 4),
    "recall": lambda rng: recall.remember(rng, 3),
    "tools": agent.tool_use,
}

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Text:
    """One recorded text."""

    name: str
    tokens: list[int]
    answers_at: list[int]


def make_texts(tokenizer: Tokenizer) -> list[Text]:
    """Return a text of every class, cut to a few hundred tokens."""
    texts = []
    for name, maker in TEXTS.items():
        tokens: list[int] = []
        starts: list[int] = []
        for segment in render(maker(random.Random(f"{SEED}/{name}"))):
            if segment.answer:
                starts.append(len(tokens))
            tokens += tokenizer.encode(segment.text, add_special_tokens=False).ids
        texts.append(Text(name, tokens[:MOST_TOKENS], [at for at in starts if at < MOST_TOKENS - MTP_DEPTH]))
    return texts


def transformers_logits(directory: Path, texts: list[Text]) -> list[Tensor]:
    """Logits [S, V] of every text from transformers."""
    model = GlmMoeDsaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model.train(mode=False)
    with torch.no_grad():
        return [model(torch.tensor([text.tokens])).logits[0].float() for text in texts]


def compare(model: ReferenceModel, texts: list[Text], logits: list[Tensor]) -> tuple[float, float]:
    """Largest difference and share of equal best tokens between the torch model and the oracle."""
    worst, equal, total = 0.0, 0, 0
    for text, theirs in zip(texts, logits, strict=True):
        with torch.no_grad():
            ours = model.lm_head(model.trunk(torch.tensor([text.tokens])))[0]
        worst = max(worst, float((ours - theirs).abs().max()))
        equal += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        total += len(text.tokens)
    return worst, equal / total


@torch.no_grad()
def mtp_chain(model: ReferenceModel, tokens: list[int], at: int, *, filled: bool) -> tuple[list[int], Tensor]:
    """Greedy draft tokens and logits [MTP_DEPTH, V] after the true token at ``at + 1``."""
    decoder = Decoder(model)
    rows, _ = decoder.forward(tokens[: at + 1], 0)
    if filled and at:
        decoder.head_rows(tokens[1 : at + 1], rows[:-1], 0)
    hidden, token = rows[-1:], tokens[at + 1]
    drafts, logits = [], []
    for step in range(MTP_DEPTH):
        hidden, row = decoder.head_rows([token], hidden, at + step)
        token = int(row[0].argmax())
        drafts.append(token)
        logits.append(row[0])
    return drafts, torch.stack(logits)


def draft_starts(text: Text) -> list[int]:
    """Return the starts of answers, and some positions in the middle of them."""
    first, last = text.answers_at[0], len(text.tokens) - MTP_DEPTH
    spread = range(first, last, max(1, (last - first) // MTP_STARTS))
    return sorted({start - 1 for start in text.answers_at} | set(spread))


def mtp_arrays(model: ReferenceModel, texts: list[Text], prefix: str, *, filled: bool) -> Arrays:
    """Draft chains of all texts."""
    tokens, ids, values = [], [], []
    for text in texts:
        for start in draft_starts(text):
            drafts, logits = mtp_chain(model, text.tokens, start, filled=filled)
            best = logits.topk(MTP_BEST)
            tokens.append(drafts)
            ids.append(best.indices.numpy())
            values.append(best.values.numpy())
    return {
        f"{prefix}_tokens": np.array(tokens, np.int16),
        f"{prefix}_top_ids": np.stack(ids).astype(np.int16),
        f"{prefix}_top_logits": np.stack(values).astype(np.float32),
    }


def main_arrays(texts: list[Text], logits: list[Tensor]) -> Arrays:
    """Best logits of every position, and whole rows for some."""
    joined = torch.cat(logits)
    best = joined.topk(BEST)
    offsets = np.cumsum([0, *(len(text.tokens) for text in texts)])
    starts = [offset + at for offset, text in zip(offsets, texts, strict=False) for at in draft_starts(text)]
    full_at = np.linspace(0, joined.shape[0] - 1, FULL_ROWS).astype(np.int32)
    return {
        "tokens": np.array([token for text in texts for token in text.tokens], np.int16),
        "lengths": np.array([len(text.tokens) for text in texts], np.int32),
        "names": np.array([text.name for text in texts]),
        "top_ids": best.indices.numpy().astype(np.int16),
        "top_logits": best.values.numpy().astype(np.float32),
        "mtp_at": np.array(starts, np.int32),
        "full_at": full_at,
        "full_logits": joined[torch.from_numpy(full_at).long()].numpy().astype(np.float32),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path, help="the .npz file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    model, texts = read_checkpoint(arguments.checkpoint), make_texts(tokenizer)
    logits = transformers_logits(arguments.checkpoint, texts)
    worst, equal = compare(model, texts, logits)
    print(f"torch against transformers: largest difference {worst:.2e}, same best token {equal:.4%}")
    packages = {
        name: version(name) for name in ("torch", "transformers", "tokenizers", "safetensors", "numpy")
    }
    arrays = main_arrays(texts, logits)
    arrays |= mtp_arrays(model, texts, "mtp", filled=True)
    arrays |= mtp_arrays(model, texts, "mtp_empty", filled=False)
    arrays["versions"] = np.array(json.dumps(packages))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.output, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
