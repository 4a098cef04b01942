"""Whether the server may speculate: only with a certificate for exactly what it is about to run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine_bindings.certificate import Certificate, Problem
from engine_bindings.errors import ColiAbError, UsageError

Verify = Callable[[Certificate, int], Sequence[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether MTP is on.

    Attributes:
        enabled: MTP is on.
        depth: draft depth that the engine is started with; 0 when off.
        reason: why, in words.
        run_id: the run that certified it; None when off.
        field: the field of the certificate that does not fit, when that is why MTP is off.
    """

    enabled: bool
    depth: int
    reason: str
    run_id: str | None = None
    field: str | None = None

    @property
    def sentence(self) -> str:
        """The decision on one line."""
        state = f"MTP on, depth {self.depth}" if self.enabled else "MTP off"
        return f"{state}: {self.reason}"


def decide_speculation(
    *,
    read: Callable[[], Certificate] | None,
    verify: Verify,
    depth: int | None,
    kv_slots: int,
) -> Decision:
    """Decide whether to speculate and how deep.

    Args:
        read: reads the certificate; None when none was given.
        verify: says what in a certificate does not fit when the engine runs at a depth.
        depth: what the user asked for; None for as deep as certified.
        kv_slots: how many slots the engine gets.
    """
    if depth == 0:
        return _off("--depth 0 was asked for")
    if kv_slots > 1:
        return _off(f"--kv-slots {kv_slots}: only single-slot speculation can be certified", field="kv_slots")
    if read is None:
        return _off("no certificate was given (--certificate RUN)")
    try:
        certificate = read()
        certified = certificate.facts.depth
        served = certified if depth is None else depth
        problems = verify(certificate, served)
    except ColiAbError as error:
        return _off(f"the certificate cannot be used: {error}", field="certificate")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        reason = f"the certificate does not cover this start: {problems[0]}{more}"
        return _off(reason, field=problems[0].field)
    run_id = certificate.evidence.run_id
    reason = f"certified by run {run_id} up to depth {certified}"
    return Decision(enabled=True, depth=served, reason=reason, run_id=run_id)


def require(decision: Decision) -> None:
    """Raise UsageError unless MTP is on: what ``--require-mtp`` asks for."""
    if not decision.enabled:
        raise UsageError(
            f"MTP is required and would be off: {decision.reason}",
            hint="give a valid certificate, or leave out --require-mtp",
        )


class SpeculationSwitch:
    """The decision while the server runs: it can only be switched off."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.tripped = False
        self._withdrawn = False

    def trip(self, reason: str) -> None:
        """Switch MTP off for all that is submitted from now on."""
        self.tripped = True
        self.decision = replace(self.decision, enabled=False, depth=0, reason=reason)

    def withdraw(self, decision: Decision) -> None:
        """Switch MTP off because the certificate does not hold any more; ``decision`` says why."""
        if self.decision.enabled:
            self._withdrawn = True
            self.decision = replace(decision, enabled=False, depth=0)

    @property
    def request_depth(self) -> int | None:
        """The depth to ask for in a request: 0 when switched off, None for the engine's own."""
        return 0 if self.tripped or self._withdrawn else None


def _off(reason: str, *, field: str | None = None) -> Decision:
    return Decision(enabled=False, depth=0, reason=reason, field=field)
