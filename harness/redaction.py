"""Takes secrets and personal names out of texts, and says what kinds were found and how many.

The same secret gets the same stand-in everywhere, so a text that repeats it still does.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STAND_IN = "REDACTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of secret: the group ``secret`` of the pattern is replaced.

    ``stand_in`` has a number in place of ``{n}``, and the pattern does not match it.
    """

    kind: str
    pattern: re.Pattern[str]
    stand_in: str


def _rule(kind: str, pattern: str, stand_in: str, flags: int = 0) -> Rule:
    return Rule(kind=kind, pattern=re.compile(pattern, flags), stand_in=stand_in)


# What may stand around a token without being a part of it.
_EDGE = r"(?<![A-Za-z0-9_-])"
_OWN = rf"(?!{STAND_IN}_)"

RULES = (
    _rule(
        "private key",
        r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z))",
        f"{STAND_IN}_PRIVATE_KEY_{{n}}",
        re.DOTALL,
    ),
    _rule(
        "API key",
        _EDGE + r"(?P<secret>sk-[A-Za-z0-9_-]{8,}|(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{16,}"
        r"|glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|AIza[A-Za-z0-9_-]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}"
        r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{16,}"
        r"|pypi-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}|xai-[A-Za-z0-9]{16,}|dop_v1_[a-f0-9]{16,}"
        r"|r8_[A-Za-z0-9]{16,}|ya29\.[A-Za-z0-9_-]{16,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,})",
        f"{STAND_IN}_KEY_{{n}}",
    ),
    _rule(
        "AWS key", _EDGE + r"(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{16})(?![A-Z0-9])", f"{STAND_IN}_AWS_KEY_{{n}}"
    ),
    _rule(
        "AWS key",
        rf"aws_?secret_?(?:access_?)?key[\\\"']{{0,4}}\s*[:=]\s*[\\\"']{{0,4}}{_OWN}"
        r"(?P<secret>[A-Za-z0-9/+=]{20,})",
        f"{STAND_IN}_AWS_SECRET_{{n}}",
        re.IGNORECASE,
    ),
    _rule(
        "token",
        _EDGE + r"(?P<secret>eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)",
        f"{STAND_IN}_TOKEN_{{n}}",
    ),
    _rule(
        "token",
        rf"\b(?:bearer|basic)[ \t]+{_OWN}(?P<secret>(?=[^\s\"',;]*[0-9._=+/-])[A-Za-z0-9._~+/=-]{{8,}})",
        f"{STAND_IN}_TOKEN_{{n}}",
        re.IGNORECASE,
    ),
    _rule(
        "token",
        rf"\bauthorization[\\\"']{{0,4}}\s*[:=]\s*[\\\"']{{0,4}}(?:basic|digest|token|apikey)[ \t]+{_OWN}"
        r"(?P<secret>[A-Za-z0-9._~+/=-]{8,})",
        f"{STAND_IN}_TOKEN_{{n}}",
        re.IGNORECASE,
    ),
    _rule(
        "token",
        rf"\bhooks\.slack\.com/services/{_OWN}(?P<secret>[A-Za-z0-9/]{{16,}})",
        f"{STAND_IN}_TOKEN_{{n}}",
    ),
    _rule(
        "password",
        # The name may have words before it, as in OPENAI_API_KEY and DB_PASSWORD.
        rf"(?:api[_-]?key|access[_-]?token|auth[_-]?token|secret[_-]?key|client[_-]?secret|passwd|password|passphrase)"
        rf"[\\\"']{{0,4}}\s*[:=]\s*[\\\"']{{0,4}}{_OWN}(?P<secret>[^\s\\\"',;<>{{}}\[\]()]{{6,}})",
        f"{STAND_IN}_PASSWORD_{{n}}",
        re.IGNORECASE,
    ),
    _rule(
        "token",
        rf"(?:secret|token|session|account[_-]?key)[\\\"']{{0,4}}\s*[:=]\s*[\\\"']{{0,4}}{_OWN}"
        r"(?P<secret>(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{12,})",
        f"{STAND_IN}_TOKEN_{{n}}",
        re.IGNORECASE,
    ),
    _rule(
        "password",
        rf"\b[a-z][a-z0-9+.-]{{0,20}}://[^\s/:@]{{0,256}}:{_OWN}(?P<secret>[^\s/@]{{1,256}})@",
        f"{STAND_IN}_PASSWORD_{{n}}",
        re.IGNORECASE,
    ),
    _rule(
        "e-mail address",
        r"(?<![A-Za-z0-9._%+-])(?P<secret>[A-Za-z0-9._%+-]+@(?!example\.com\b)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*"
        r"\.[A-Za-z]{2,})",
        "user{n}@example.com",
    ),
    _rule(
        "home directory",
        r"(?:/home/|/Users/|[A-Za-z]:\\{1,2}Users\\{1,2})"
        r"(?P<secret>(?!user[0-9]+(?![\w.-])|Shared(?![\w.-])|Public(?![\w.-]))[\w.-]*\w)",
        "user{n}",
    ),
)


class Redactor:
    """Redacts texts that belong together.

    Args:
        words: further texts to take out wherever they stand, for example names.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        named = sorted(filter(None, words), key=len, reverse=True)
        own = [
            _rule("named word", rf"(?P<secret>{'|'.join(map(re.escape, named))})", f"{STAND_IN}_WORD_{{n}}")
        ]
        self._rules = (*(own if named else ()), *RULES)
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._numbers: Counter[str] = Counter()
        self._found: Counter[str] = Counter()

    @property
    def found(self) -> Mapping[str, int]:
        """How often each kind was taken out, in the order of the rules."""
        kinds = dict.fromkeys(rule.kind for rule in self._rules)
        return {kind: self._found[kind] for kind in kinds if self._found[kind]}

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        for rule in self._rules:
            text = rule.pattern.sub(lambda match, rule=rule: self._replace(match, rule), text)
        return text

    def _replace(self, match: re.Match[str], rule: Rule) -> str:
        whole, secret = match[0], match["secret"]
        self._found[rule.kind] += 1
        key = (rule.stand_in, secret)
        if key not in self._stand_ins:
            self._numbers[rule.stand_in] += 1
            self._stand_ins[key] = rule.stand_in.format(n=self._numbers[rule.stand_in])
        start = match.start("secret") - match.start()
        return whole[:start] + self._stand_ins[key] + whole[start + len(secret) :]
