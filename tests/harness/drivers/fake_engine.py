"""Engines that misbehave in one way each, written with the literal bytes of the protocols.

``write_fake(path, "name")`` makes an executable that behaves like the function of that name.
"""

import os
import signal
import sys
import time
from pathlib import Path

BANNER = b"== fake engine ==\nloaded in 0.00s | MTP ACTIVE (draft=3)\n"
READY = b"\x01\x01READY\x01\x01\nSTAT 0 0.00 0.0 0.01\n"
CHAT_READY = BANNER + READY + b"TIERS 0 0 8 0.00 0.00\n"
SERVE_READY = BANNER + READY + b"HWINFO 2 24.7 23.8 0 0.0 cpu|\nTIERS 0 0 8 0.00 0.00\nEMAP 1 2 0000\n"
CHAT_END = b"\x01\x01END\x01\x01\n"

history = b""
last_header = b""


def write_fake(path: Path, behaviour: str) -> Path:
    """Write an executable at ``path`` and return it."""
    here = str(Path(__file__).parent)
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {here!r})\n"
        f"import fake_engine\nfake_engine.{behaviour}()\n"
    )
    path.chmod(0o755)
    return path


def say(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def complain(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def is_serve() -> bool:
    return os.environ.get("SERVE_BATCH") == "1"


def read_request() -> tuple[bytes, bytes] | None:
    """Return the id and the prompt of the next request, or None at the end of input."""
    global last_header  # noqa: PLW0603 - what this process was asked last
    while header := sys.stdin.buffer.readline():
        last_header = header
        if header.startswith(b"OPTIONS"):
            say(b"ERROR 0 BAD_REQUEST\n")  # it has no extension
            continue
        word, *fields = header.split()
        if word == b"SUBMIT":
            payload = sys.stdin.buffer.read(int(fields[2]) + 1)[:-1]
            return fields[0], payload
        if word == b"\x02PROMPT":
            return b"0", sys.stdin.buffer.read(int(fields[0]) + 1)[:-1]
        if word == b"\x02RESET":
            say(CHAT_END + b"STAT 0 0.00 0.0 0.01\n")
        elif word != b"STOP":
            return b"0", header.rstrip(b"\n")
    return None


def answer(request: tuple[bytes, bytes], tokens: list[bytes], *, forwards: int, length: int = 0) -> None:
    """Answer a request completely, by the rules of the mode that was asked for."""
    global history  # noqa: PLW0603 - what is in the cache of this process
    request_id, prompt = request
    pairs = enumerate(zip(history, prompt, strict=False))
    cached = next((i for i, (old, new) in pairs if old != new), min(len(history), len(prompt)))
    history = prompt + b"".join(tokens)
    counts = b"%d 100.00 0.0 0.01 %d %d\n" % (len(tokens), len(prompt), length)
    complain(f"[API] KV slot 0 prefix {cached}/{len(prompt)} token, prefill {len(prompt) - cached}\n")
    drafts = max(0, len(tokens) - forwards)
    complain(f"[SPEC] turn: drafted {drafts}, accepted {drafts}, forwards {forwards}\n")
    if is_serve():
        say(b"ACCEPT %s %d\n" % (request_id, len(prompt)))
        for token in tokens:
            say(b"DATA %s %d\n%s\n" % (request_id, len(token), token))
        say(b"PROF 0.010 %d %d 0.000 0.000 0.000 0.000 0.000 %d\n" % (len(prompt), len(tokens), forwards))
        say(b"DONE %s STAT %s" % (request_id, counts))
    else:
        for token in tokens:
            say(token)
        say(CHAT_END + b"STAT " + counts)
        complain(
            f"[PROF] decode forwards: {forwards} | latency p50 1.0 ms | p90 1.0 ms | p99 1.0 ms | max 1.0 ms"
            f" | {len(tokens) / forwards:.2f} tok/forward\n"
        )


def forwards_of(tokens: list[bytes]) -> int:
    """Return what an engine at this depth would need when every draft is right."""
    depth = int(os.environ["DRAFT"])
    return -(-len(tokens) // (1 + depth))


TOKENS = [b"one ", b"two ", b"three ", b"four"]


def healthy() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    while request := read_request():
        answer(request, TOKENS, forwards=forwards_of(TOKENS))


def exits_at_once() -> None:
    complain("loading weights\nfatal: missing model.norm.weight\n")
    raise SystemExit(1)


def never_ready() -> None:
    say(BANNER)
    sys.stdin.read()
    time.sleep(3600)


def hangs_mid_turn() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    request = read_request()
    assert request
    say(b"ACCEPT 1 5\nDATA 1 3\none\n" if is_serve() else b"one")
    time.sleep(3600)


def hangs_before_output() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    read_request()
    time.sleep(3600)


def never_stops_talking() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    read_request()
    say(b"ACCEPT 1 5\n" if is_serve() else b"")
    while True:
        say(b"DATA 1 3\none\n" if is_serve() else b"one")


def does_not_exit() -> None:
    healthy()
    time.sleep(3600)


def dies_mid_turn() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    request = read_request()
    assert request
    answer(request, TOKENS, forwards=forwards_of(TOKENS))
    read_request()
    say(b"ACCEPT 2 5\nDATA 2 3\none\n" if is_serve() else b"one")
    complain("about to crash\n")
    os.kill(os.getpid(), signal.SIGKILL)


def floods_stderr() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    # Nothing is read from stdin before the flood is out, so both pipes are full at the same time.
    line = "x" * 1023 + "\n"
    for _ in range(10 * 1024):
        sys.stderr.write(line)
    sys.stderr.flush()
    while request := read_request():
        answer(request, TOKENS, forwards=forwards_of(TOKENS))


def writes_garbage() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    read_request()
    say(b"ACCEPT 1 5\nprint: hello\n" if is_serve() else CHAT_END + b"garbage\n")
    sys.stdin.read()


def wrong_mode() -> None:
    say(CHAT_READY if is_serve() else SERVE_READY)
    complain(f"received {sys.stdin.read()!r}\n")


def refuses() -> None:
    say(SERVE_READY if is_serve() else CHAT_READY)
    read_request()
    complain("[API] prompt does not fit: >=511 token, context is 510 (CTX=512). Raise it.\n")
    say(b"ERROR 1 CONTEXT_EXCEEDED 511 510\n" if is_serve() else CHAT_END + b"STAT 0 0.00 0.0 0.01 0 0\n")
    sys.stdin.read()


def talks_on_after_the_end() -> None:
    """Write when the input has ended: nobody asks for anything any more."""
    healthy()
    say(b"goodbye " * (64 << 10))


def exits_badly() -> None:
    healthy()
    raise SystemExit(7)


def leaves_child() -> None:
    """Start a child that holds the pipes open, say its pid, and end."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    complain(f"child {child}\n")
    raise SystemExit(5)


def shows_directory() -> None:
    directory = os.environ["SNAP"]
    complain(f"directory {directory} holds {sorted(os.listdir(directory))}\n")
    (Path(directory) / ".coli_usage").write_text("state")
    healthy()


def shows_environment() -> None:
    complain("".join(f"{name}={value}\n" for name, value in os.environ.items() if "\n" not in value))
    healthy()


def hangs_in_serve_mode() -> None:
    """Answer in chat mode; in serve mode open the named pipe, say the pid there and hang with it open."""
    if not is_serve():
        return healthy()
    say(SERVE_READY)
    read_request()
    with open(os.environ["HANG_PIPE"], "w") as pipe:
        pipe.write(f"{os.getpid()}\n")
        pipe.flush()
        time.sleep(3600)
    return None


def dies_in_serve_mode() -> None:
    if is_serve():
        dies_mid_turn()
    healthy()


def changes_a_token_with_drafts_in_chat_mode() -> None:
    changed = [b"one ", b"two ", b"tree ", b"four"]
    tokens = changed if os.environ["DRAFT"] != "0" and not is_serve() else TOKENS
    say(SERVE_READY if is_serve() else CHAT_READY)
    while request := read_request():
        answer(request, tokens, forwards=forwards_of(tokens))


def never_drafts() -> None:
    os.environ["DRAFT"] = "0"
    healthy()


def changes_a_token_once_with_drafts_in_chat_mode() -> None:
    """Make the mistake in the first process only; a file says whether there was one."""
    mark = Path(os.environ["MARK_FILE"])
    if os.environ["DRAFT"] == "0" or is_serve() or mark.exists():
        return healthy()
    mark.touch()
    return changes_a_token_with_drafts_in_chat_mode()


def changes_a_token_and_hangs_at_a_cap_of_three() -> None:
    """Make a mistake in the third token; hang at a cap of 3 where there is a pipe to say so."""
    changed = os.environ["DRAFT"] != "0" and not is_serve()
    tokens = [b"one ", b"two ", b"tree ", b"four"] if changed else TOKENS
    say(SERVE_READY if is_serve() else CHAT_READY)
    while request := read_request():
        if "HANG_PIPE" in os.environ and b"3" in last_header.split():
            with open(os.environ["HANG_PIPE"], "w") as pipe:
                pipe.write(f"{os.getpid()}\n")
                pipe.flush()
                time.sleep(3600)
        answer(request, tokens, forwards=forwards_of(tokens))


def changes_a_token_or_ends_early_with_drafts_in_chat_mode() -> None:
    """Make one mistake at a cap of 8 and another one at any other."""
    say(SERVE_READY if is_serve() else CHAT_READY)
    while request := read_request():
        tokens = TOKENS
        if os.environ["DRAFT"] != "0" and not is_serve():
            tokens = [b"one ", b"two ", b"tree ", b"four"] if b"8" in last_header.split() else TOKENS[:-1]
        answer(request, tokens, forwards=forwards_of(tokens))
