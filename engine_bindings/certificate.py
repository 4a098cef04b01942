"""The sealed result of a gate: the engine, model, settings and machine that were compared and passed.

A gate issues it; a server verifies it against what it is about to run, and speculates only when all agrees.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    model_validator,
)

from engine_bindings.errors import UsageError
from engine_bindings.facts import Digest, Facts, Name, Problem, SortedNames, compare_facts
from engine_bindings.facts_reader import read_facts
from engine_bindings.regular_file import read_regular

__all__ = [
    "Certificate",
    "CertificateError",
    "Evidence",
    "Facts",
    "Problem",
    "canonical_bytes",
    "check_run_verdict",
    "issue_certificate",
    "key_id",
    "parse_certificate",
    "read_certificate",
    "read_facts",
    "verify_certificate",
    "write_certificate",
]

FORMAT: Final = 1
CERTIFICATE_NAME = "certificate.json"
# What a run directory has beside it: what was run, and what came of it.
PLAN_NAME = "plan.json"
VERDICT_NAME = "verdict.json"
KEY_BYTES = 32
# A certificate takes about 3 KiB; some hundreds of pins or scenarios still fit.
CERTIFICATE_LIMIT_BYTES = 1 << 20
# Long enough to serve a release, short enough that a machine's quiet changes meet a new gate.
DEFAULT_VALIDITY = timedelta(days=30)
# Nothing vouches that a machine stays as it was for longer; the engine's libraries are not in any digest.
MAX_VALIDITY = timedelta(days=365)

# The first words of what is sealed, so that no other use of the same key makes a seal.
SEAL_PURPOSE = b"coli-ab certificate seal\0"
KEY_ID_PURPOSE = b"coli-ab certificate key\0"


class CertificateError(UsageError):
    """A certificate or its key cannot be read, written or issued."""

    code = "certificate"


def _check_time(value: datetime) -> datetime:
    if value.utcoffset() != timedelta(0) or value.microsecond:
        raise ValueError("not a time in whole seconds UTC")
    return value.replace(tzinfo=UTC)


def _render_time(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[datetime, AfterValidator(_check_time), PlainSerializer(_render_time)]


class Evidence(BaseModel):
    """What the gate compared, and how it judged.

    Attributes:
        run_id: the run directory's name.
        scenarios: names of the scenarios, sorted.
        scenarios_digest: SHA-256 over their texts.
        cells_compared: cells whose every turn was in a comparison.
        tokens_compared: tokens on one side of all pairs together.
        near_tie_policy: ``explain`` takes a proven near-tie for identical, ``fail`` takes none.
        near_ties: differences that were explained as near-ties.
        verdict: only ``pass`` can be certified.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run_id: Name
    scenarios: Annotated[SortedNames, Field(min_length=1)]
    scenarios_digest: Digest
    cells_compared: int = Field(ge=1)
    tokens_compared: int = Field(ge=1)
    near_tie_policy: Literal["explain", "fail"]
    near_ties: int = Field(ge=0)
    verdict: Literal["pass", "fail", "inconclusive", "invalid"]


class Certificate(BaseModel):
    """The facts that were gated, the evidence, the time, and the seal over all of it.

    Attributes:
        format: version of this format.
        facts: what was gated; ``depth`` is the greatest that may be served.
        evidence: what was compared and the verdict.
        tool_version: version of coli-ab that judged.
        issued_at: in whole seconds UTC.
        expires_at: in whole seconds UTC; not valid from this second on.
        key_id: names the key without giving it away, so that another key is not taken for an edit.
        seal: HMAC-SHA256 in hex over the canonical bytes of all other fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1]
    facts: Facts
    evidence: Evidence
    tool_version: Name
    issued_at: Time
    expires_at: Time
    key_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    seal: Digest

    @model_validator(mode="after")
    def _check_claim(self) -> Self:
        for complaint in self._doubt():
            raise ValueError(complaint)
        return self

    def _doubt(self) -> Iterator[str]:
        if self.evidence.verdict != "pass":
            yield f"verdict {self.evidence.verdict!r}: only 'pass' can be certified"
        if self.facts.kv_slots != 1:
            yield f"kv_slots {self.facts.kv_slots}: only one slot can be certified"
        if self.facts.depth < 1:
            yield "depth 0: without speculation there is nothing to certify"
        if self.evidence.near_ties and self.evidence.near_tie_policy == "fail":
            yield f"near_ties {self.evidence.near_ties}: the policy allows none"
        if self.issued_at >= self.expires_at:
            yield "it expires before it is issued"


def canonical_bytes(certificate: Certificate) -> bytes:
    """Return the only bytes that stand for a certificate: ASCII, sorted keys, indent 2, last a newline."""
    return _serialise(certificate.model_dump(mode="json"))


def _serialise(value: Mapping[str, object]) -> bytes:
    return (
        json.dumps(value, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False).encode("ascii")
        + b"\n"
    )


def _compute_seal(certificate: Certificate, key: bytes) -> str:
    sealed = _serialise(certificate.model_dump(mode="json", exclude={"seal"}))
    return hmac.new(_checked_key(key), SEAL_PURPOSE + sealed, hashlib.sha256).hexdigest()


def key_id(key: bytes) -> str:
    """Return 16 hex digits that name a key without giving it away."""
    return hmac.new(_checked_key(key), KEY_ID_PURPOSE, hashlib.sha256).hexdigest()[:16]


def _checked_key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise CertificateError(f"a certificate's key has {KEY_BYTES} bytes, not {len(key)}")
    return key


def issue_certificate(
    *,
    facts: Facts,
    evidence: Evidence,
    key: bytes,
    now: datetime,
    tool_version: str,
    validity: timedelta = DEFAULT_VALIDITY,
) -> Certificate:
    """Return a sealed certificate for what a gate compared; ``now`` is an aware time.

    Raises:
        CertificateError: the verdict is not ``pass``, kv_slots is not 1, or another value is impossible.
    """
    if not timedelta(seconds=1) <= validity <= MAX_VALIDITY:
        raise CertificateError(
            f"a certificate is valid for one second to {MAX_VALIDITY.days} days, not for {validity}"
        )
    issued_at = now.astimezone(UTC).replace(microsecond=0)
    try:
        unsealed = Certificate(
            format=FORMAT,
            facts=facts,
            evidence=evidence,
            tool_version=tool_version,
            issued_at=issued_at,
            expires_at=issued_at + timedelta(seconds=int(validity.total_seconds())),
            key_id=key_id(key),
            seal="0" * 64,
        )
    except ValidationError as error:
        raise CertificateError(f"no certificate is issued: {_name_first_error(error)}") from error
    return unsealed.model_copy(update={"seal": _compute_seal(unsealed, key)})


def write_certificate(path: Path, certificate: Certificate) -> Path:
    """Write a certificate to a file, or into a run directory, whole or not at all; return the file's path.

    Raises:
        CertificateError: the file cannot be written.
    """
    target = path / CERTIFICATE_NAME if path.is_dir() else path
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(canonical_bytes(certificate))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CertificateError(f"{target}: the certificate cannot be written: {error.strerror}") from error
    return target


def read_certificate(path: Path) -> Certificate:
    """Read a certificate from its file or from a run directory. It is well-formed, not yet verified.

    Raises:
        CertificateError: there is none, or its bytes are not exactly what this version writes.
    """
    source = path / CERTIFICATE_NAME if path.is_dir() else path
    return parse_certificate(_read_limited(source), source=str(source))


def check_run_verdict(path: Path) -> tuple[Problem, ...]:
    """Return why the run that a certificate lies in does not bear it: its verdict is no pass now.

    ``path`` is the run directory or the certificate's file. A certificate that was copied elsewhere stands
    alone.
    """
    directory = path if path.is_dir() else path.parent
    if not (directory / PLAN_NAME).exists():
        return ()
    file = directory / VERDICT_NAME
    try:
        status = json.loads(read_regular(file, limit_bytes=CERTIFICATE_LIMIT_BYTES))["status"]
    except OSError as error:
        return (Problem(field="verdict", message=f"{file}: {error.strerror}"),)
    except (ValueError, KeyError, TypeError, RecursionError):
        return (Problem(field="verdict", message=f"{file}: not a verdict"),)
    if status == "pass":
        return ()
    return (Problem(field="verdict", message=f"the run says {status!r:.40}, and only a pass is certified"),)


def parse_certificate(data: bytes, *, source: str) -> Certificate:
    """Return the certificate that these bytes are; ``source`` names them in an error.

    Raises:
        CertificateError: the bytes are not exactly what this version writes.
    """
    try:
        certificate = Certificate.model_validate_json(data)
    except ValidationError as error:
        raise CertificateError(
            f"{source}: not a certificate: {_name_first_error(error)}",
            hint="take the file as a gate wrote it",
        ) from error
    if canonical_bytes(certificate) != data:
        raise CertificateError(
            f"{source}: not in the one form that a certificate is written in, so it was edited or rewritten",
            hint="take the file as a gate wrote it; key order, spacing and repeated keys count too",
        )
    return certificate


def _read_limited(source: Path) -> bytes:
    if not source.is_file():
        raise CertificateError(
            f"{source}: no certificate there",
            hint="give a run directory or a certificate.json; only a run that passed has one",
        )
    try:
        with source.open("rb") as file:
            data = file.read(CERTIFICATE_LIMIT_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{source}: cannot be read: {error.strerror}") from error
    if len(data) > CERTIFICATE_LIMIT_BYTES:
        raise CertificateError(f"{source}: larger than {CERTIFICATE_LIMIT_BYTES} bytes, so not a certificate")
    return data


def _name_first_error(error: ValidationError) -> str:
    """Return the first complaint, or the one about the format: a later format differs in other fields too."""
    details = error.errors(include_url=False, include_context=False)
    detail = next((item for item in details if item["loc"] == ("format",)), details[0])
    if detail["loc"] == ("format",) and detail["type"] == "literal_error":
        return f"format: {detail['input']!r:.80}, and this version reads {FORMAT}"
    place = ".".join(map(str, detail["loc"]))
    return f"{place}: {detail['msg']}" if place else detail["msg"]


def verify_certificate(
    certificate: Certificate, *, key: bytes, facts: Facts, now: datetime
) -> tuple[Problem, ...]:
    """Return every reason why the certificate does not cover ``facts`` at ``now``; no reason means valid.

    The depth may be lower than certified and the paths may be fewer; everything else must be equal.

    Raises:
        CertificateError: ``key`` is no key.
    """
    return (
        *_verify_seal(certificate, key),
        *_verify_time(certificate, now),
        *compare_facts(certificate.facts, facts),
    )


def _verify_seal(certificate: Certificate, key: bytes) -> Iterator[Problem]:
    expected = _compute_seal(certificate, key)
    here = key_id(key)
    if hmac.compare_digest(expected.encode(), certificate.seal.encode()):
        return
    if certificate.key_id != here:
        message = f"sealed with the key {certificate.key_id}, verified with the key {here}"
    else:
        message = "does not fit the content: a field was edited after the gate"
    yield Problem(field="seal", message=message)


def _verify_time(certificate: Certificate, now: datetime) -> Iterator[Problem]:
    here = _render_time(now.astimezone(UTC))
    issued, expires = certificate.issued_at, certificate.expires_at
    if now < issued:
        yield Problem(
            field="issued_at",
            message=f"issued at {_render_time(issued)}, but it is only {here}: check the clock",
        )
    if now >= expires:
        yield Problem(
            field="expires_at", message=f"expired at {_render_time(expires)}, and it is {here}: gate again"
        )
