"""Measures a checkpoint on fresh dialogues: speculation by class, exact answers, stop tokens."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .corpus import Dialogue, Segment, agent, recall, render, structured, talk
from .export import STOP_TOKENS, read_checkpoint, token_id
from .infer import Answer, Decoder
from .model import ReferenceModel

SEED = 90210
LIMIT = 400

CLASSES: dict[str, Callable[[random.Random], Dialogue]] = {
    "copy": recall.repeat,
    "copy, long": lambda rng: recall.repeat(rng, rng.randrange(8, 13)),
    "recall": recall.remember,
    "recall, far": lambda rng: recall.remember(rng, 8),
    "quote": recall.quote,
    "tool call": agent.tool_use,
    "agent loop": lambda rng: agent.agent_loop(rng, 8, 25),
    "counting": lambda rng: Dialogue(kind="tasks", turns=(talk.counting(rng),)),
    "counting, long": talk.long_count,
    "tasks": talk.short_tasks,
    "talk": recall.talk,
    "question": talk.questions,
    "foreign": talk.foreign_words,
    "foreign, long": lambda rng: talk.foreign_words(rng, rng.randrange(8, 12)),
    "story": talk.story,
    "story, long": lambda rng: talk.story(rng, rng.randrange(4, 7)),
    "prose": talk.description,
    "prose, long": lambda rng: talk.description(rng, 2),
    "list": talk.listing,
    "list, long": lambda rng: talk.listing(rng, rng.randrange(20, 40)),
    "own list": talk.own_list,
    "JSON": structured.records,
    "JSON, long": lambda rng: structured.records(rng, rng.randrange(8, 13)),
    "to JSON": structured.to_json,
    "code": structured.functions,
    "code, long": lambda rng: structured.functions(rng, rng.randrange(5, 9)),
    "class, long": lambda rng: structured.record_class(rng, rng.randrange(4, 7)),
}


@dataclass(slots=True)
class Tally:
    """Sums over the answers of one class at one depth."""

    answers: int = 0
    exact: int = 0
    stopped: int = 0
    tokens: int = 0
    forwards: int = 0
    proposed: list[int] = field(default_factory=lambda: [0] * 8)
    accepted: list[int] = field(default_factory=lambda: [0] * 8)

    def add(self, answer: Answer, expected: list[int]) -> None:
        """Count one answer."""
        self.answers += 1
        self.exact += list(answer.tokens) == expected
        self.stopped += answer.stopped
        self.tokens += len(answer.tokens)
        self.forwards += answer.counts.forwards
        for depth in range(8):
            self.proposed[depth] += answer.counts.proposed[depth]
            self.accepted[depth] += answer.counts.accepted[depth]

    def merge(self, other: Tally) -> None:
        """Add another tally to this one."""
        for name in ("answers", "exact", "stopped", "tokens", "forwards"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.proposed = [a + b for a, b in zip(self.proposed, other.proposed, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]

    @property
    def acceptance(self) -> float:
        """Accepted part of the depth-1 drafts."""
        return self.accepted[0] / max(1, self.proposed[0])

    @property
    def per_forward(self) -> float:
        """Tokens per decode forward."""
        return self.tokens / max(1, self.forwards)


def split_last_answer(segments: list[Segment], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Prompt before the last answer, and that answer without its stop token."""
    encoded = [tokenizer.encode(segment.text, add_special_tokens=False).ids for segment in segments]
    prompt = [token for ids in encoded[:-1] for token in ids]
    return prompt, encoded[-1][:-1]


def split_last_call(segments: list[Segment], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the same for the last tool call."""
    last = max(i for i, segment in enumerate(segments) if segment.text.startswith("<tool_call>"))
    return split_last_answer(segments[: last + 1], tokenizer)


def measure(model: ReferenceModel, tokenizer: Tokenizer, name: str, depth: int, count: int) -> Tally:
    """Greedy answers to ``count`` fresh prompts of a class."""
    stops = frozenset(token_id(tokenizer, token) for token in STOP_TOKENS)
    rng, tally = random.Random(f"{SEED}/{name}"), Tally()
    for index in range(count):
        segments = render(CLASSES[name](rng))
        calls = any(segment.text.startswith("<tool_call>") for segment in segments)
        split = split_last_call if calls and index % 2 else split_last_answer
        prompt, expected = split(segments, tokenizer)
        tally.add(Decoder(model).generate(prompt, LIMIT, depth, stops), expected)
    return tally


def report(model: ReferenceModel, tokenizer: Tokenizer, depths: list[int], count: int) -> list[str]:
    """Return a Markdown table, one row per class."""
    head = "| class | answers | exact | stopped | tokens | acceptance | " + " | ".join(
        f"t/f {d}" for d in depths
    )
    lines = [head + " |", "|---|" + "---:|" * (5 + len(depths))]
    totals = [Tally() for _ in depths]
    for name in CLASSES:
        tallies = [measure(model, tokenizer, name, depth, count) for depth in depths]
        for total, tally in zip(totals, tallies, strict=True):
            total.merge(tally)
        lines.append(_table_row(name, tallies))
        print(lines[-1], flush=True)
    return [*lines, _table_row("all", totals)]


def _table_row(name: str, tallies: list[Tally]) -> str:
    one = tallies[0]
    cells = [
        name,
        str(one.answers),
        str(one.exact),
        str(one.stopped),
        str(one.tokens),
        f"{one.acceptance:.3f}",
    ]
    cells += [f"{tally.per_forward:.2f}" for tally in tallies]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--count", type=int, default=12, help="prompts per class")
    parser.add_argument("--output", type=Path, help="write the table here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    lines = report(read_checkpoint(arguments.checkpoint), tokenizer, arguments.depths, arguments.count)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
