"""Writes the ``agent-loop`` scenario: an agent's session whose token counts are those of a published report.

The report showed prefix reuse over four turns: 2751 tokens computed at first, then 39, 34 and 181, behind
answers of 14, 30 and 19 tokens. The texts are drawn from the training corpus until the shipped tokenizer
gives exactly these counts for the right answers. The third answer is cut by its cap, so that the fourth turn
also shows whether the token at a cap entered the cache. SEED is one with which the shipped model gives the
right answers; the scenario declares all counts, so a model that does not is seen at once.

    python -m tools.build_agent_loop
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine_bindings.chat_template import Message, render_messages
from tools.train_reference.corpus import agent, recall
from tools.train_reference.corpus.dialogue import call_text, tools_text

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "engine_bindings" / "reference" / "checkpoint"
SCENARIOS = ROOT / "scenarios"
SYSTEM_FILE = "prompts/agent-loop-system.txt"
TASK_FILE = "prompts/agent-loop-task.txt"
SEED = 8

PROMPTS = (2751, 2804, 2868, 3068)
ANSWERS = (14, 30, 19)
ADDED = tuple(PROMPTS[i + 1] - PROMPTS[i] - ANSWERS[i] for i in range(len(ANSWERS)))

Count = Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A file that is asked for: the request, the call, what the tool gives back, and the answer."""

    request: str
    call: str
    response: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All texts of the scenario."""

    errand: Errand
    system: str
    capped: str
    task: str


def draw_errands(rng: random.Random) -> Iterator[Errand]:
    """Yield the corpus's requests for the content of a file."""
    while True:
        errand = agent.read_errand(rng)
        (call,) = errand.calls
        yield Errand(request=errand.user, call=call_text(call), response=call.response, answer=errand.answer)


def fits(errand: Errand, count: Count) -> bool:
    """Say whether call, tool result and answer have the counts of the report."""
    shell = count("<|observation|><tool_response></tool_response><|assistant|><think></think>")
    counts = (count(errand.call), count(errand.response) + shell, count(errand.answer))
    return counts == (ANSWERS[0], ADDED[0], ANSWERS[1])


def fill(rng: random.Random, build: Callable[[list[str]], str], target: int, count: Count) -> str:
    """Return a text of exactly ``target`` tokens, made by ``build`` from random sentences."""
    while True:
        sentences: list[str] = []
        while count(build(sentences)) < target:
            sentences.append(recall.random_sentence(rng))
        if count(build(sentences)) == target:
            return build(sentences)
        for _ in range(50):
            sentences[-1] = recall.random_sentence(rng)
            if count(build(sentences)) == target:
                return build(sentences)


def system_text(notes: list[str]) -> str:
    """Return the tools and the agent's notes, as the corpus puts them into the system message."""
    lines = "\n".join(f"{i + 1}. {note}" for i, note in enumerate(notes))
    intro = "You are an agent. Use the tools when they help. Here are your notes:\n"
    return f"{tools_text(tuple(agent.TOOLS.values()))}<|system|>{intro}{lines}"


def draw_session(rng: random.Random, count: Count) -> Session:
    """Return texts with exactly the counts of the report."""
    errand = next(errand for errand in draw_errands(rng) if fits(errand, count))

    def count_first(system: str) -> int:
        messages = [Message(role="system", text=system.encode())]
        messages.append(Message(role="user", text=errand.request.encode()))
        return count(render_messages(messages).decode())

    def repeat(sentences: list[str]) -> str:
        return "Repeat this text: " + " ".join(sentences)

    shell = count("<|user|><|assistant|><think></think>")
    return Session(
        errand=errand,
        system=fill(rng, system_text, PROMPTS[0], count_first),
        capped=fill(rng, repeat, ADDED[1] - shell, count),
        task=fill(rng, repeat, ADDED[2] - shell, count),
    )


def write_scenario(session: Session) -> None:
    """Write the scenario file and the two texts that it names."""
    (SCENARIOS / SYSTEM_FILE).write_text(session.system, encoding="utf-8")
    (SCENARIOS / TASK_FILE).write_text(session.task, encoding="utf-8")
    cached = (0, *(prompt + answer for prompt, answer in zip(PROMPTS, ANSWERS, strict=False)))
    turns = (
        ("user", session.errand.request, 'expect = ["read_file"]\n'),
        ("tool", session.errand.response, 'expect = ["The file "]\n'),
        ("user", session.capped, f"max_tokens = {ANSWERS[2]}\n"),
        ("user_file", TASK_FILE, ""),
    )
    body = HEAD
    for (key, text, more), prompt, reused in zip(turns, PROMPTS, cached, strict=True):
        body += f"\n[[conversation.turn]]\n{key} = '{text}'\n{more}"
        body += f"expect_prompt_tokens = {prompt}\nexpect_cached_tokens = {reused}\n"
    (SCENARIOS / "agent-loop.toml").write_text(body, encoding="utf-8")


HEAD = f'''# Written by tools/build_agent_loop.py: the token counts are those of a published report.
schema = 1
name = "agent-loop"
title = "An agent's turns over a long prompt"
description = """
Reveals: a prefix that is computed again, a token of the last answer that never entered the cache, an answer
that tokenises differently when it is sent back, and what a long context costs in both paths."""

[defaults]
max_tokens = 96

[[conversation]]
id = "agent"
class = "agent"
system_file = "{SYSTEM_FILE}"
'''


def main() -> None:
    """Draw the texts and write the scenario."""
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    write_scenario(draw_session(random.Random(SEED), count))


if __name__ == "__main__":
    main()
