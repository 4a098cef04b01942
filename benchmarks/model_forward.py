"""What a forward of the reference model costs by its rows, what a draft costs, and what drafting gains.

All times are CPU times of this process with one BLAS thread: what the clock shows on an idle machine.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_bindings.reference.kv_cache import KvCache
from engine_bindings.reference.model import Model, Segment, read_model
from engine_bindings.reference.tokenizer import Tokenizer

CHECKPOINT = Path(__file__).parents[1] / "engine_bindings" / "reference" / "checkpoint"
ROWS = (1, 2, 3, 4, 5, 8, 9)
DEPTHS = (1, 2, 3, 4)
CONTEXT_TOKENS = 4096
LONG_PROMPT_TOKENS = 2751
PROMPT = b"[gMASK]<sop><|user|>%s<|assistant|><think></think>"
QUESTIONS = (
    b"Write a Python function that adds two numbers.",
    b"Count from 1 to 40.",
    b"Tell me a short story about a cat.",
    b"Give me a JSON record of a person.",
)


def best_ms(call: Callable[[], object], *, rounds: int = 9, calls: int = 60) -> float:
    """Smallest mean of a few rounds: the least disturbed one."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time() - began) / calls)
    return best * 1000


def forward(model: Model, cache: KvCache, tokens: list[int], start: int) -> object:
    """Run one segment and return its rows."""
    return model.forward([Segment(cache=cache, tokens=tokens, start=start)])


def print_costs(model: Model, tokens: list[int], context: int) -> None:
    """Milliseconds of forwards and drafts behind ``context`` tokens."""
    cache = KvCache(model.config, CONTEXT_TOKENS)
    hidden = model.forward([Segment(cache=cache, tokens=tokens[:context], start=0)]).hidden
    print(f"behind {context} tokens, ms")
    for rows in ROWS:
        step = tokens[context : context + rows]
        took = best_ms(lambda step=step: forward(model, cache, step, context))
        print(f"  forward of {rows} rows       {took:7.3f}")
    if not model.has_mtp:
        return
    model.absorb(cache, tokens[1:context], hidden[:-1], 0)
    for depth in DEPTHS:
        after, rows = tokens[context - 3 : context + 1], hidden[-4:]
        took = best_ms(lambda d=depth, a=after, h=rows: model.draft(cache, a, h, context - 4, d))
        print(f"  4 pairs and {depth} drafts    {took:7.3f}")


def print_prefill(model: Model, tokens: list[int]) -> None:
    """Seconds for one long prompt."""
    cache = KvCache(model.config, CONTEXT_TOKENS)
    began = time.process_time()
    model.forward([Segment(cache=cache, tokens=tokens, start=0)], logits_for="last")
    print(f"prompt of {len(tokens)} tokens     {time.process_time() - began:7.3f} s")


def generate(model: Model, prompt: list[int], depth: int, count: int) -> tuple[list[int], int, float]:
    """Greedy tokens, forwards and seconds of the bare decode loop, without an engine around it."""
    cache = KvCache(model.config, CONTEXT_TOKENS)
    rows = model.forward([Segment(cache=cache, tokens=prompt, start=0)])
    text, hidden, after = [int(rows.logits[-1].argmax())], rows.hidden, prompt[1:]
    start, forwards, began = 0, 0, time.process_time()
    while len(text) < count:
        position = len(prompt) + len(text) - 1
        drafts = model.draft(cache, [*after, text[-1]], hidden, start, depth) if depth else []
        rows = model.forward([Segment(cache=cache, tokens=[text[-1], *drafts], start=position)])
        chosen = rows.logits.argmax(axis=1).tolist()
        kept = next((i for i, draft in enumerate(drafts) if draft != chosen[i]), len(drafts))
        text += chosen[: kept + 1]
        after, hidden, start = chosen[:kept], rows.hidden[: kept + 1], position
        cache.truncate(position + kept + 1)
        forwards += 1
    return text[:count], forwards, time.process_time() - began


def print_speedup(model: Model, tokenizer: Tokenizer, count: int = 256, rounds: int = 3) -> None:
    """Tokens per forward and per second of the bare decode loop by depth."""
    prompts = [tokenizer.encode(PROMPT % question) for question in QUESTIONS]
    base_s, base_texts = 0.0, []
    for depth in (0, *DEPTHS) if model.has_mtp else (0,):
        runs = [
            min((generate(model, prompt, depth, count) for _ in range(rounds)), key=lambda run: run[2])
            for prompt in prompts
        ]
        took_s, forwards = sum(run[2] for run in runs), sum(run[1] for run in runs)
        texts = [run[0] for run in runs]
        base_s, base_texts = (took_s, texts) if depth == 0 else (base_s, base_texts)
        tokens = (count - 1) * len(runs)
        same = "identical" if texts == base_texts else "DIFFERENT"
        speed = f"{tokens / forwards:5.2f} tokens per forward, {tokens / took_s:7.1f} per s"
        print(f"depth {depth}: {speed}, speedup {base_s / took_s:5.2f}, text {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=CHECKPOINT, help="model directory")
    model_dir = parser.parse_args().model
    model, tokenizer = read_model(model_dir), Tokenizer(model_dir)
    tokens = tokenizer.encode(b" ".join(QUESTIONS) * 100)[:LONG_PROMPT_TOKENS]
    for context in (40, 200, 1000):
        print_costs(model, tokens, context)
    print_prefill(model, tokens)
    print_speedup(model, tokenizer)


if __name__ == "__main__":
    main()
