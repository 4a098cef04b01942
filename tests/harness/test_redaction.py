"""Secrets are taken out wherever they stand, and what is none stays to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.redaction import STAND_IN, Redactor

BODY = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", min_size=24, max_size=40)
UPPER = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=16, max_size=16)
NAME = st.from_regex(r"[a-z][a-z0-9]{2,10}", fullmatch=True)
PRIVATE = "-----BEGIN {0}PRIVATE KEY-----\n{1}\n-----END {0}PRIVATE KEY-----"

MORE_KEYS = ("sk_live_", "rk_test_", "gsk_", "npm_", "pypi-", "nvapi-", "xai-", "r8_", "ya29.")

# Each kind with what must be gone, and how it stands in a text.
SECRETS = st.one_of(
    BODY.map(lambda b: ("API key", f"sk-{b}", f"sk-{b}")),
    BODY.map(lambda b: ("API key", f"sk-proj-{b}", f'"sk-proj-{b}"')),
    BODY.map(lambda b: ("API key", f"ghp_{b}", f"ghp_{b}")),
    BODY.map(lambda b: ("API key", f"hf_{b}", f"token=hf_{b}")),
    BODY.map(lambda b: ("token", f"{b}7", f"Authorization: Bearer {b}7")),
    BODY.map(lambda b: ("token", f"eyJ{b}.{b}.{b}", f"eyJ{b}.{b}.{b}")),
    UPPER.map(lambda b: ("AWS key", f"AKIA{b}", f"AKIA{b}")),
    BODY.map(lambda b: ("AWS key", b, f"aws_secret_access_key = {b}")),
    BODY.map(lambda b: ("password", b, f'"password": "{b}"')),
    BODY.map(lambda b: ("password", b, f"API_KEY={b}")),
    BODY.map(lambda b: ("password", b, f"export OPENAI_API_KEY='{b}'")),
    BODY.map(lambda b: ("password", b, f"DB_PASSWORD={b}")),
    BODY.map(lambda b: ("token", f"{b}7", f'"token": "{b}7"')),
    BODY.map(lambda b: ("token", f"{b}7", f"JWT_SECRET={b}7")),
    BODY.map(lambda b: ("token", b, f"Authorization: Basic {b}")),
    BODY.map(lambda b: ("token", b, f"https://hooks.slack.com/services/{b}")),
    st.tuples(st.sampled_from(MORE_KEYS), BODY).map(lambda p: ("API key", p[0] + p[1], p[0] + p[1])),
    BODY.map(lambda b: ("password", b, f'{{\\"client_secret\\": \\"{b}\\"}}')),
    BODY.map(lambda b: ("password", b, f"postgres://admin:{b}@db/prod")),
    BODY.map(lambda b: ("private key", b, PRIVATE.format("RSA ", b))),
    BODY.map(lambda b: ("private key", b, f"-----BEGIN OPENSSH PRIVATE KEY-----\n{b}")),
    NAME.map(lambda n: ("e-mail address", f"{n}@corp.example.org", f"<{n}@corp.example.org>")),
    NAME.filter(lambda n: not n.startswith("user")).map(
        lambda n: ("home directory", f"home/{n}", f"/home/{n}/src/x.py")
    ),
    NAME.filter(lambda n: not n.startswith("user")).map(
        lambda n: ("home directory", f"Users/{n}", f"/Users/{n}")
    ),
    NAME.filter(lambda n: not n.startswith("user")).map(
        lambda n: ("home directory", f"Users\\{n}", f"C:\\Users\\{n}\\x")
    ),
)
AROUND = st.text("abc XYZ\n.,;:()é", max_size=20)


@given(SECRETS, AROUND, AROUND)
def test_a_secret_is_gone_wherever_it_stands(secret: tuple[str, str, str], before: str, after: str) -> None:
    kind, gone, shown = secret
    redactor = Redactor()
    text = redactor.redact(f"{before} {shown} {after}")

    assert gone not in text
    assert kind in redactor.found
    assert text.startswith(before)


@given(st.lists(st.one_of(SECRETS.map(lambda s: s[2]), AROUND), max_size=6).map(" ".join))
def test_a_redacted_text_holds_nothing_more_to_redact(text: str) -> None:
    once = Redactor().redact(text)
    again = Redactor()

    assert again.redact(once) == once
    assert again.found == {}


@given(SECRETS, SECRETS)
def test_the_same_secret_gets_the_same_stand_in(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    redactor = Redactor()
    texts = [redactor.redact(f"{secret[2]} ") for secret in (one, other, one)]

    assert texts[0] == texts[2]
    assert (texts[0] == texts[1]) is (one[2] == other[2]) or one[0] == other[0]


@pytest.mark.parametrize(
    "text",
    [
        "a task-based approach, disk-usage-report and ask-me-anything",
        "the bearer of good news; basic training; Bearer authentication",
        "password: must be long",
        "the password is required",
        "see https://host:8080/path and git@github",
        "user@example.com and me@example.com",
        "/home and /home/ and /Users/Shared",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "AKIA is a prefix; EAKIAABCDEFGHIJKLMNOPQ",
        "3.14 @ 5 pm, x@y",
        "",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    redactor = Redactor()

    assert redactor.redact(text) == text
    assert redactor.found == {}


def test_counts_are_by_kind() -> None:
    redactor = Redactor()
    redactor.redact("a@b.org wrote to c@d.org and a@b.org from /home/jane with sk-abcdefghijk")

    assert redactor.found == {"API key": 1, "e-mail address": 3, "home directory": 1}


def test_stand_ins_keep_the_shape() -> None:
    text = Redactor().redact(
        "cat /home/jane/notes.txt | mail jane@corp.org, then /home/joe and jane@corp.org"
    )

    assert (
        text == "cat /home/user1/notes.txt | mail user1@example.com, then /home/user2 and user1@example.com"
    )


def test_named_words_go_first_and_the_longer_before_the_shorter() -> None:
    redactor = Redactor(["ACME", "ACME Corp", ""])

    assert redactor.redact("ACME Corp, ACME, a(c)me") == f"{STAND_IN}_WORD_1, {STAND_IN}_WORD_2, a(c)me"
    assert redactor.found == {"named word": 2}
