"""Trains the byte-level BPE tokenizer of the reference model.

The file format, the split pattern and the special tokens are those of GLM's tokenizer. Digits are kept
apart while training, so no merge joins them: every number is spelled digit by digit, which a small model
copies and counts best.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import document, long_document, render, session

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL_TOKENS = (
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
TEXT_TOKENS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
VOCAB_SIZE = 640
SEED = 5120


def _added(content: str, *, special: bool) -> AddedToken:
    return AddedToken(content, special=special, normalized=False)


def added_tokens() -> list[AddedToken]:
    """Make control tokens ``special`` (never text of an answer) but no other marks, as in GLM."""
    return [_added(text, special=True) for text in CONTROL_TOKENS] + [
        _added(text, special=False) for text in TEXT_TOKENS
    ]


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def training_texts(count: int) -> list[str]:
    """Pieces of corpus text between the special tokens."""
    rng, texts = random.Random(SEED), []
    marks = sorted(CONTROL_TOKENS + TEXT_TOKENS, key=len, reverse=True)
    makers = [document] * 12 + [long_document] * 4 + [session]
    for _ in range(count):
        text = "".join(segment.text for segment in render(rng.choice(makers)(rng)))
        for mark in marks:
            text = text.replace(mark, "\0")
        texts += [piece for piece in text.split("\0") if piece]
    return texts


def train_tokenizer(count: int = 6000) -> Tokenizer:
    """Train on ``count`` dialogues and return the finished tokenizer; special tokens take the last ids."""
    bpe = Tokenizer(models.BPE(ignore_merges=True))
    bpe.pre_tokenizer = _split(SPLIT_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"))
    added = added_tokens()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(added),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(training_texts(count), trainer)
    bpe.pre_tokenizer = _split(SPLIT_PATTERN)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_tokens(added)
    return bpe


def write_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write ``tokenizer.json``."""
    value = json.loads(tokenizer.to_str())
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Command line: where to write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="path of the tokenizer.json to write")
    write_tokenizer(train_tokenizer(), parser.parse_args().output)


if __name__ == "__main__":
    main()
