"""A small engine that answers from a script, in serve mode, with or without its extension.

Started as `python scripted_engine.py SCRIPT.json`, with DRAFT, KV_SLOTS and CTX in the environment as any
engine. Tokens are real tokens of the script's tokenizer and are the same for the same prompt; speed and
faults are scripted.

    {"tokenizer": PATH, "extension": true, "tokens_per_s": 0, "ready_file": PATH, "log": PATH,
     "accept": [2, 0, 1], "replies": [{"match": TEXT, "text": ANSWER, "fault": NAME, "after": N, ...}]}

The first reply whose `match` is in the prompt is used. `fault` happens after so many tokens: crash, hang
(nothing is read or written any more), garbage, hold (until STOP, CANCEL, or until `release_file` is there;
`says` is a line that it repeats on stderr meanwhile).
With `other_at` the token at that place is another one whenever the turn speculates, and `gap` is the margin
between both.
"""

import hashlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer

DEFAULTS = {"detail": "0", "logprobs": "0", "seed": "", "depth": "8", "payload": "text", "constrain": "0",
            "ignore_eos": "0"}  # fmt: skip
POLL_S = 0.01


def byte_table() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


class Vocabulary:
    def __init__(self, path: str) -> None:
        self.tokenizer = Tokenizer.from_file(path)
        self.added = {
            t["id"]: t["content"] for t in json.loads(Path(path).read_text("utf-8"))["added_tokens"]
        }
        self.table = byte_table()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def payload(self, token_id: int) -> bytes:
        if token_id in self.added:
            return self.added[token_id].encode()
        return bytes(self.table[one] for one in self.tokenizer.id_to_token(token_id))

    def text(self, ids: list[int]) -> str:
        return b"".join(map(self.payload, ids)).decode("utf-8", "replace")


class Turn:
    def __init__(self, engine: "Engine", fields: list[str], prompt: bytes, grammar: bytes) -> None:
        self.id, self.slot, self.max_tokens = int(fields[1]), int(fields[2]), int(fields[4])
        self.options = engine.options.pop(self.id, DEFAULTS)
        ids = self.options["payload"] == "ids"
        self.prompt = [int(one) for one in prompt.split()] if ids else engine.vocabulary.ids(prompt.decode())
        text = engine.vocabulary.text(self.prompt)
        self.detail = self.options["detail"] == "1" or self.options["logprobs"] != "0"
        self.depth = min(engine.depth, int(self.options["depth"])) if engine.slots == 1 else 0
        self.reply = next((one for one in engine.script["replies"] if one["match"] in text), None)
        seed = self.options["seed"] if float(fields[5]) > 0 else ""
        if self.reply is None:
            name = hashlib.sha256((text + seed).encode()).hexdigest()
            self.reply = {
                "text": f"answer {name[:12]} of {len(self.prompt)} tokens, and some more words to read."
            }
        self.tokens = engine.vocabulary.ids(self.reply["text"])
        if self.reply.get("repeat"):
            self.tokens = (self.tokens * (self.max_tokens // len(self.tokens) + 1))[: self.max_tokens]
        self.cached = self.adopt_prefix(engine)
        self.sent: list[int] = []
        self.drafted = self.accepted = self.forwards = self.block = 0
        self.held = False
        engine.log({"prompt": text, "ids": self.prompt, "grammar": grammar.decode(), "options": self.options,
                    "max_tokens": self.max_tokens, "slot": self.slot, "temperature": float(fields[5]),
                    "top_p": float(fields[6])})  # fmt: skip

    def adopt_prefix(self, engine: "Engine") -> int:
        history, shared = engine.histories.setdefault(self.slot, []), 0
        while shared < min(len(history), len(self.prompt) - 1) and history[shared] == self.prompt[shared]:
            shared += 1
        engine.histories[self.slot] = history[:shared]
        return shared

    def token_at(self, index: int) -> int:
        token = self.tokens[index]
        return token + 1 if self.reply.get("other_at") == index and self.depth > 0 else token

    def origin(self, engine: "Engine") -> str:
        if self.block > 0:
            self.block -= 1
            return "d"
        if self.sent:
            self.forwards += 1
            if self.depth:
                pattern = engine.script["accept"]
                self.block = min(self.depth, pattern[self.forwards % len(pattern)])
                self.block = min(self.block, min(self.max_tokens, len(self.tokens)) - len(self.sent) - 1)
                self.drafted += self.depth
                self.accepted += self.block
        return "p"


class Engine:
    def __init__(self, script: dict) -> None:
        self.script = {"extension": True, "tokens_per_s": 0, "accept": [2, 0, 1], "replies": []} | script
        self.vocabulary = Vocabulary(self.script["tokenizer"])
        self.depth = int(os.environ.get("DRAFT", "0"))
        self.slots = int(os.environ.get("KV_SLOTS", "1"))
        self.context = int(os.environ.get("CTX", "4096"))
        self.options: dict[int, dict[str, str]] = {}
        self.histories: dict[int, list[int]] = {}
        self.turns: dict[int, Turn] = {}
        self.buffer = b""
        self.ended = False
        self.due = time.monotonic()

    def log(self, entry: dict) -> None:
        if "log" in self.script:
            with Path(self.script["log"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def run(self) -> None:
        self.log({"start": {"depth": self.depth, "slots": self.slots, "model": os.environ.get("SNAP")}})
        if self.script.get("refuse_start"):
            print("this engine never starts", file=sys.stderr)
            raise SystemExit(3)
        while "ready_file" in self.script and not Path(self.script["ready_file"]).exists():
            time.sleep(POLL_S)
        self.write(b"== scripted engine ==\nloaded | MTP ACTIVE (draft=%d)\n" % self.depth)
        self.write(b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\nHWINFO 1 1.0 1.0 0 0.0 cpu|\n")
        self.write(b"TIERS 0 8 0 0.00 0.01\n")
        while not (self.ended and not self.turns):
            moved = sum([self.step(turn) for turn in list(self.turns.values())]) > 0
            self.read(0 if moved else None if not self.turns else POLL_S)

    def read(self, timeout: float | None) -> None:
        if self.ended:
            time.sleep(POLL_S if timeout else 0)
            return
        if select.select([0], [], [], timeout)[0]:
            data = os.read(0, 1 << 16)
            self.ended = not data
            self.buffer += data
            while self.take_command():
                pass

    def take_command(self) -> bool:
        line, newline, rest = self.buffer.partition(b"\n")
        if not newline:
            return False
        word, *fields = line.decode().split()
        if word == "SUBMIT":
            size, extra = int(fields[2]), int(fields[6]) if len(fields) > 6 else 0
            if len(rest) < size + extra + 1:
                return False
            self.buffer = rest[size + extra + 1 :]
            self.submit([word, *fields], rest[:size], rest[size : size + extra])
        else:
            self.buffer = rest
            self.control(word, fields)
        return True

    def control(self, word: str, fields: list[str]) -> None:
        if word == "OPTIONS" and self.script["extension"]:
            pairs = dict(field.split("=") for field in fields[1:])
            unknown = next((key for key in pairs if key not in DEFAULTS), None)
            if unknown is not None:
                self.write(f"ERROR {fields[0]} BAD_OPTION {unknown}\n".encode())
            else:
                self.options[int(fields[0])] = DEFAULTS | pairs
        elif word in {"STOP", "CANCEL"}:
            turn = self.turns.get(int(fields[0]))
            self.log({"control": word, "id": int(fields[0]), "sent": len(turn.sent) if turn else None})
            if turn is None:
                self.write(f"ERROR {fields[0]} NOT_FOUND\n".encode())
            elif word == "CANCEL":
                del self.turns[turn.id]
                self.write(f"ERROR {turn.id} CANCELLED\n".encode())
            else:
                self.finish(turn, "stopped")
        else:
            self.write(b"ERROR 0 BAD_REQUEST\n")

    def submit(self, fields: list[str], prompt: bytes, grammar: bytes) -> None:
        turn = Turn(self, fields, prompt, grammar)
        if any(other.slot == turn.slot for other in self.turns.values()):
            self.write(f"ERROR {turn.id} SLOT_BUSY\n".encode())
        elif len(turn.prompt) > self.context - 8:
            self.write(f"ERROR {turn.id} CONTEXT_EXCEEDED {len(turn.prompt)} {self.context - 8}\n".encode())
        elif turn.options["constrain"] == "1" and not grammar:
            self.write(f"ERROR {turn.id} BAD_REQUEST\n".encode())
        elif turn.options["constrain"] == "1" and b"::= (" in grammar:
            self.write(f"ERROR {turn.id} BAD_GRAMMAR unbalanced_parenthesis\n".encode())
        else:
            self.turns[turn.id] = turn
            self.due = max(self.due, time.monotonic())
            self.write(f"ACCEPT {turn.id} {len(turn.prompt)}\n".encode())

    def step(self, turn: Turn) -> bool:
        index = len(turn.sent)
        if turn.reply.get("fault") and index == turn.reply.get("after", 0) and not self.pass_fault(turn):
            return False
        if index >= len(turn.tokens):
            self.finish(turn, "stop")
            return True
        self.pace()
        token, payload = turn.token_at(index), b""
        payload = self.vocabulary.payload(token)
        frame = self.token_line(turn, token) if turn.detail else b""
        turn.origin(self) if not turn.detail else None
        self.write(frame + b"DATA %d %d\n%b\n" % (turn.id, len(payload), payload))
        turn.sent.append(token)
        if len(turn.sent) >= turn.max_tokens:
            self.finish(turn, "length")
        return True

    def pace(self) -> None:
        if self.script["tokens_per_s"]:
            self.due = max(self.due + 1 / self.script["tokens_per_s"], time.monotonic() - 0.01)
            delay = self.due - time.monotonic()
            if delay > 0:
                time.sleep(delay)

    def token_line(self, turn: Turn, token: int) -> bytes:
        gap = turn.reply.get("gap", 0.5)
        others = [f"{token}:-0.250000", f"{token + 1}:{-0.25 - gap:.6f}", f"{max(0, token - 1)}:-3.000000"]
        shown = " ".join(["", *others[: min(3, int(turn.options["logprobs"]))]])
        return f"TOKEN {turn.id} {token} {turn.origin(self)} -0.250000{shown}\n".encode()

    def pass_fault(self, turn: Turn) -> bool:
        fault, only_without_depth, _ = turn.reply["fault"].partition("-at-depth-0")
        if only_without_depth and turn.depth:
            return True
        if fault == "crash":
            print("Segmentation fault (scripted)", file=sys.stderr, flush=True)
            os._exit(139)
        if fault == "hang":
            while True:
                signal.pause()
        if fault == "garbage":
            self.write(b"!? this is no protocol\n")
            return False
        if "says" in turn.reply:
            print(turn.reply["says"], file=sys.stderr, flush=True)
        release = turn.reply.get("release_file")
        return release is not None and Path(release).exists()

    def finish(self, turn: Turn, reason: str) -> None:
        del self.turns[turn.id]
        self.histories[turn.slot] = turn.prompt + turn.sent
        turn.forwards += 1
        if turn.detail:
            counts = f"{turn.drafted} {turn.accepted} {turn.forwards} {turn.cached}"
            self.write(f"SPEC {turn.id} {counts} {reason}\n".encode())
        sent, prompt = len(turn.sent), len(turn.prompt)
        self.write(f"PROF 0.1 {prompt} {sent} 0.0 0.0 0.0 0.0 0.0 {turn.forwards}\n".encode())
        limited = int(reason == "length")
        self.write(f"DONE {turn.id} STAT {sent} 10.00 0.0 0.01 {prompt} {limited}\n".encode())


if __name__ == "__main__":
    Engine(json.loads(Path(sys.argv[1]).read_text("utf-8"))).run()
