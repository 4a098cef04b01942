"""The differences of a run as cases: two turns, the place where they part, and who can be asked again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from harness.contrasts import ContrastResult, FoundDifference
from harness.expectations import expect_answer
from harness.identity import first_token_index
from harness.metrics import AnswerKey
from harness.plan import Arm, CellSpec, Contrast, Plan, ProbeKind, ProbeMark
from harness.relations import Relation, list_relations
from harness.scenario import Scenario, Turn
from harness.transcript import CellRecord, TurnRecord

# A probe answers this far past the difference: a draft block is at most MAX_DEPTH + 1 tokens, and the cap
# must not change the shape of the block that holds the difference or of the one behind it.
TOKENS_PAST_DIFFERENCE = 18

Records = Mapping[CellSpec, CellRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One difference of a contrast, with the two turns that show it.

    Attributes:
        contrast, found: the difference. a, b: its two turns; for turns of one cell the given answer and the
            one that the scenario asks for.
        relation: what the scenario asks for, for turns of one cell.
        probed_a, probed_b: the arms whose probes speak for it. They are those of a path that shows which
            bytes are a token, such as serve mode, where it shows the same difference.
        turn: the request. typed: an arm did not send the exact prompt, but a typed
            line or messages, so the turn cannot be asked alone.
        prefix_bytes: the common part of both answers, up to the start of the first token that differs.
        token_index: of that token, None when no cell shows boundaries.
        lengths_a, lengths_b: bytes of each token of the answers, None where no cell shows boundaries.
        recorded_a: the first side comes from an earlier run, so only the second can be asked again.
    """

    contrast: Contrast
    found: FoundDifference
    a: TurnRecord
    b: TurnRecord
    probed_a: Arm
    probed_b: Arm
    turn: Turn
    typed: bool
    prefix_bytes: int
    token_index: int | None
    lengths_a: tuple[int, ...] | None = None
    lengths_b: tuple[int, ...] | None = None
    recorded_a: bool = False
    relation: Relation | None = None

    @property
    def asked(self) -> tuple[Arm, ...]:
        """The arms that can be asked again."""
        return (self.probed_b,) if self.recorded_a else tuple(dict.fromkeys((self.probed_a, self.probed_b)))

    @property
    def exact_prompt(self) -> bytes | None:
        """The whole prompt, which a typed line does not show, as the side shows it that sent it."""
        return next((turn.prompt for turn in (self.a, self.b) if turn.entry != "line"), None)

    @property
    def prefix_moved(self) -> bool:
        """Whether the paths took other prefixes from the cache, and that is no difference: other contexts."""
        counts = (self.a.cached_tokens, self.b.cached_tokens)
        compared = {difference.field for difference in self.found.differences}
        moved = None not in counts and counts[0] != counts[1]
        return self.contrast.kind == "path" and moved and not compared & {"cached_tokens", "prefill_tokens"}

    @property
    def place(self) -> tuple[str, str, int]:
        """Scenario, conversation and turn."""
        return self.found.scenario, self.found.conversation, self.found.turn

    def spec(self, arm: Arm, kind: ProbeKind) -> CellSpec:
        """Return the cell of one probe of this case."""
        scenario, conversation, turn = self.place
        offset = self.prefix_bytes if kind == "score" else 0
        mark = ProbeMark(kind=kind, conversation=conversation, turn=turn, offset_bytes=offset)
        return CellSpec(arm=arm, scenario=scenario, repetition=0, probe=mark)


def list_cases(
    plan: Plan,
    results: Iterable[ContrastResult],
    latest: Records,
    lengths: Mapping[AnswerKey, tuple[int, ...]],
) -> tuple[Case, ...]:
    """Return the differences between arms and within cells, in the order of the contrasts."""
    cases = [
        _build_case(plan, result.contrast, found, latest, lengths)
        for result in results
        if result.contrast.kind != "self"
        for found in result.found
    ]
    return tuple(_share_probes(plan, case, cases) for case in cases)


def sweep_depths(plan: Plan, depth: int) -> tuple[int, ...]:
    """Return the other depths that a difference at ``depth`` is looked for at: 1 to one more than it."""
    return tuple(d for d in range(1, min(depth + 1, plan.max_depth) + 1) if d != depth)


def score_arm(case: Case) -> Arm:
    """Return the arm that scores the common part of the answers: its path without drafting."""
    arm = case.asked[0]
    return Arm(path=arm.path, depth=0, build=arm.build)


def undraft_arm(case: Case) -> Arm:
    """Return the arm whose cell shows whether drafts alone break what the scenario asks of an answer."""
    return replace(case.contrast.a, depth=0)


def common_bytes(a: bytes, b: bytes) -> int:
    """Return how many leading bytes two texts share."""
    size = min(len(a), len(b))
    return next((i for i in range(size) if a[i] != b[i]), size)


def _build_case(
    plan: Plan,
    contrast: Contrast,
    found: FoundDifference,
    latest: Records,
    lengths: Mapping[AnswerKey, tuple[int, ...]],
) -> Case:
    scenario = plan.scenario(found.scenario)
    conversation = next(c for c in scenario.conversations if c.id == found.conversation)
    a = _find_turn(latest, contrast.a, found, found.repetitions_a[0])
    relation = _find_relation(contrast, found, scenario)
    if relation is None:
        b = _find_turn(latest, contrast.b, found, found.repetitions_b[0])
    else:
        b = _expect(latest, contrast.a, found, relation)
    index, start = _locate(found, a, b, lengths)
    return Case(
        contrast=contrast,
        found=found,
        a=a,
        b=b,
        probed_a=contrast.a,
        probed_b=contrast.b,
        turn=conversation.turns[found.turn],
        typed={a.entry, b.entry} != {"prompt"},
        prefix_bytes=start,
        token_index=index,
        lengths_a=_lengths(found.scenario, a, lengths),
        lengths_b=_lengths(found.scenario, b, lengths),
        recorded_a=plan.is_recorded(contrast.a),
        relation=relation,
    )


def _find_relation(contrast: Contrast, found: FoundDifference, scenario: Scenario) -> Relation | None:
    if contrast.kind != "within":
        return None
    place = (found.conversation, found.turn)
    return next(r for r in list_relations(scenario) if (r.conversation, r.turn) == place)


def _expect(latest: Records, arm: Arm, found: FoundDifference, relation: Relation) -> TurnRecord:
    spec = CellSpec(arm=arm, scenario=found.scenario, repetition=found.repetitions_a[0])
    expected = expect_answer(relation, {(t.conversation, t.turn): t for t in latest[spec].turns})
    assert expected is not None, "there is no pair, and so no difference, without it"  # noqa: S101
    return expected


def _find_turn(latest: Records, arm: Arm, found: FoundDifference, repetition: int) -> TurnRecord:
    spec = CellSpec(arm=arm, scenario=found.scenario, repetition=repetition)
    return next(t for t in latest[spec].turns if (t.conversation, t.turn) == (found.conversation, found.turn))


def _locate(
    found: FoundDifference, a: TurnRecord, b: TurnRecord, lengths: Mapping[AnswerKey, tuple[int, ...]]
) -> tuple[int | None, int]:
    """Return the index of the first token that differs and the byte at which it starts."""
    ends_a, ends_b = (_ends(found.scenario, turn, lengths) for turn in (a, b))
    index = first_token_index(a, b, ends_a, ends_b)
    ends = ends_a if ends_a is not None else ends_b
    if index is not None and ends is not None:
        return index, ends[index - 1] if index else 0
    offset = common_bytes(a.text, b.text)
    while offset and offset < len(a.text) and a.text[offset] & 0xC0 == 0x80:
        offset -= 1
    return None, offset


def _ends(
    scenario: str, turn: TurnRecord, lengths: Mapping[AnswerKey, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Return where each token of an answer ends."""
    known = _lengths(scenario, turn, lengths)
    return None if known is None else tuple(accumulate(known))


def _lengths(
    scenario: str, turn: TurnRecord, lengths: Mapping[AnswerKey, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Return the bytes of each token of an answer, as it or a cell with the same answer shows it."""
    key = (scenario, turn.conversation, turn.turn, turn.text, turn.emitted_tokens or 0)
    return turn.token_lengths or lengths.get(key)


def _share_probes(plan: Plan, case: Case, cases: Iterable[Case]) -> Case:
    """Let the probes of a path that shows tokens speak for one that does not, where both differ alike."""
    kind = case.contrast.kind
    if kind not in ("speculation", "within") or case.contrast.a.path in plan.token_paths:
        return case
    for other in cases:
        served = other.contrast.kind == kind and other.contrast.a.path in plan.token_paths
        same_arms = _name_drafting(other.contrast) == _name_drafting(case.contrast)
        same_texts = (other.a.text, other.b.text) == (case.a.text, case.b.text)
        if served and same_arms and other.place == case.place and same_texts:
            return replace(
                case,
                probed_a=other.probed_a,
                probed_b=other.probed_b,
                prefix_bytes=other.prefix_bytes,
                token_index=other.token_index,
            )
    return case


def _name_drafting(contrast: Contrast) -> tuple[tuple[str, int], ...]:
    """Return all that tells the arms of a contrast apart but the path."""
    return tuple((arm.build, arm.depth) for arm in (contrast.a, contrast.b))


def shorten_turn(case: Case) -> Turn:
    """Return the differing turn with its cap lowered to what is needed to see the difference again."""
    if case.a.text == case.b.text or not case.found.in_tokens:
        return case.turn
    # Every token has a byte at least, so the offset bounds the index where boundaries are not shown.
    index = case.token_index if case.token_index is not None else case.prefix_bytes
    cap_tokens = min(case.turn.max_tokens, index + TOKENS_PAST_DIFFERENCE)
    # A cancel ends an answer by chance, perhaps before the difference: here the cap alone ends it.
    return replace(case.turn, max_tokens=cap_tokens, cancel_after_tokens=None)
