"""Figures of a turn by hand-made deliveries, and the sums over turns."""

from dataclasses import replace

import pytest

from harness.metric_words import METRICS, MIN_TOKENS_FOR_RATE
from harness.metrics import (
    CellMetrics,
    Totals,
    TurnMetrics,
    collect_token_lengths,
    derive_metrics,
    divide,
    median_reported,
    sum_reported,
    sum_turns,
)
from harness.plan import Arm, CellSpec
from harness.transcript import CellRecord, Delivery, TurnRecord
from tests.harness.run_builders import CHAT_OFF, CHAT_ON, SERVE_ON, make_plan, make_turn, run_healthy

MS = 1_000_000


def make_record(turn: TurnRecord, arm: Arm = CHAT_ON) -> CellRecord:
    spec = CellSpec(arm=arm, scenario="quick", repetition=0)
    return CellRecord(spec=spec, started_at="", argv=(), turns=(turn,))


def derive(turn: TurnRecord, arm: Arm = CHAT_ON) -> TurnMetrics:
    return derive_metrics(make_record(turn, arm)).turns[0]


def arrivals(*items: tuple[float, int, int | None]) -> tuple[Delivery, ...]:
    return tuple(Delivery(at_ns=int(ms * MS), size_bytes=size, tokens=tokens) for ms, size, tokens in items)


def test_ttft_runs_from_the_request_to_the_first_output_that_is_not_empty():
    turn = make_turn(sent_ns=100 * MS, deliveries=arrivals((130, 0, 1), (150, 4, 1), (160, 4, 1)))
    assert derive(turn).ttft_ms == 50.0


def test_gaps_between_outputs_are_a_list():
    assert derive(make_turn(deliveries=arrivals((1, 4, 1), (3, 4, 2), (7.5, 4, 1)))).itl_ms == (2.0, 4.5)


def test_tpot_leaves_out_the_tokens_of_the_first_delivery():
    # Three tokens come first; nine more take 18 ms. Twelve tokens over 18 ms would be another figure.
    figures = derive(make_turn(deliveries=arrivals((10, 12, 3), (20, 20, 5), (28, 16, 4))))
    assert figures.tpot_ms == 2.0
    assert figures.decode_tokens_per_s == 500.0


@pytest.mark.parametrize(("tokens", "rated"), [(MIN_TOKENS_FOR_RATE, True), (MIN_TOKENS_FOR_RATE - 1, False)])
def test_a_rate_needs_enough_tokens(tokens: int, rated: bool):
    figures = derive(make_turn(deliveries=arrivals((10, 4, 1), (20, 4, tokens))))
    assert (figures.tpot_ms is not None) is rated


def test_a_rate_needs_two_deliveries():
    assert derive(make_turn(deliveries=arrivals((10, 400, 100)))).tpot_ms is None
    assert derive(make_turn(deliveries=())).ttft_ms is None


def test_without_token_counts_there_is_no_rate():
    assert derive(make_turn(deliveries=arrivals((10, 12, None), (20, 400, None)))).tpot_ms is None


def test_boundaries_of_a_serve_cell_with_the_same_answer_give_chat_mode_its_rate():
    chat = make_turn(
        text=b"a" * 21, emitted_tokens=12, deliveries=arrivals((10, 5, None), (30, 4, None), (40, 12, None))
    )
    lengths = (2, 2, 1, 3, 1) + (1,) * 3 + (2, 3, 2, 2)
    serve = make_turn(text=b"a" * 21, emitted_tokens=12, token_lengths=lengths)
    assert sum(lengths) == 21
    shared = collect_token_lengths([make_record(chat), make_record(serve, SERVE_ON)])
    # Five bytes are three tokens, so nine tokens come within 30 ms.
    assert derive_metrics(make_record(chat), shared).turns[0].tpot_ms == pytest.approx(30 / 9)


@pytest.mark.parametrize(
    "change",
    [
        {"text": b"b" * 21},
        {"emitted_tokens": 13},
        {"turn": 1},
        {"conversation": "other"},
        {"emitted_tokens": None},
    ],
)
def test_boundaries_of_another_answer_are_not_taken(change: dict[str, object]):
    serve = make_turn(text=b"a" * 21, emitted_tokens=12, token_lengths=(1,) * 9 + (4,) * 3)
    chat = make_turn(text=b"a" * 21, emitted_tokens=12, deliveries=arrivals((10, 1, None), (30, 20, None)))
    changed = make_turn(**{"text": b"a" * 21, "emitted_tokens": 12, "deliveries": chat.deliveries, **change})
    shared = collect_token_lengths([make_record(serve, SERVE_ON)])
    assert derive_metrics(make_record(chat), shared).turns[0].tpot_ms is not None
    assert derive_metrics(make_record(changed), shared).turns[0].tpot_ms is None


def test_boundaries_that_do_not_cover_the_text_are_not_shared():
    cut = make_turn(text=b"abc", emitted_tokens=2, token_lengths=(2, 2))
    assert collect_token_lengths([make_record(cut)]) == {}


def test_accepted_drafts_are_taken_as_reported_else_as_the_tokens_beyond_the_forwards():
    assert derive(make_turn(accepted_tokens=5, forwards=4)).accepted_tokens == 5
    assert derive(make_turn(emitted_tokens=6, forwards=4)).accepted_tokens == 2
    assert derive(make_turn(emitted_tokens=6, forwards=4), CHAT_OFF).accepted_tokens is None
    assert derive(make_turn(emitted_tokens=6, forwards=8)).accepted_tokens is None
    assert derive(make_turn(emitted_tokens=6, forwards=None)).accepted_tokens is None


def test_rates_and_ratios_of_a_turn():
    figures = derive(make_turn(emitted_tokens=10, forwards=4, drafted_tokens=12))
    assert figures.tokens_per_forward == 2.5
    assert figures.acceptance_rate == 0.5


def test_prefix_and_prefill_are_each_other_s_rest():
    assert derive(make_turn(cached_tokens=None, prefill_tokens=3)).cached_tokens == 7
    assert derive(make_turn(cached_tokens=4, prefill_tokens=None)).prefill_tokens == 6
    typed = derive(make_turn(prompt_tokens=None, cached_tokens=None, prefill_tokens=3))
    assert (typed.cached_tokens, typed.prefill_tokens) == (None, 3)


def test_a_sum_is_only_given_when_every_turn_reports():
    one, two = derive(make_turn(drafted_tokens=8)), derive(make_turn(drafted_tokens=None))
    assert sum_turns([one, one]).drafted_tokens == 16
    assert sum_turns([one, two]).drafted_tokens is None
    assert sum_turns([one, two]).emitted_tokens == 12
    assert sum_turns([]) == Totals(
        turns=0,
        emitted_tokens=None,
        forwards=None,
        drafted_tokens=None,
        accepted_tokens=None,
        acceptance_rate=None,
        tokens_per_forward=None,
    )


def test_nothing_reported_is_not_zero():
    assert sum_reported([]) is None
    assert sum_reported([0, 0]) == 0
    assert divide(1, 0) is None
    assert divide(None, 2) is None
    assert divide(0, 2) == 0
    assert median_reported([None]) is None
    assert median_reported([None, 1.0, 3.0]) == 2.0


def test_every_figure_of_a_turn_is_a_defined_word():
    words = {metric.name for metric in METRICS}
    fields = set(TurnMetrics.__dataclass_fields__) - {"conversation", "turn", "finish"}
    assert fields <= words
    assert isinstance(derive_metrics(make_record(make_turn())), CellMetrics)


def test_a_turn_without_tokens_needs_no_forwards_to_be_reported():
    plan = make_plan()
    records = run_healthy(plan, lambda spec, turn: replace(turn, emitted_tokens=0, forwards=None))
    turns = derive_metrics(records[0]).turns
    counted = replace(turns[0], emitted_tokens=6, forwards=6)
    totals = sum_turns([counted, turns[1]])
    assert (totals.emitted_tokens, totals.forwards) == (6, 6)
    assert sum_turns([counted, replace(turns[1], emitted_tokens=3)]).forwards is None


def test_counts_of_cancelled_and_refused_turns_are_in_no_sum():
    plan = make_plan()
    turns = derive_metrics(run_healthy(plan)[0]).turns
    cut = [replace(turns[0], finish=finish, forwards=None) for finish in ("cancelled", "refused")]
    assert sum_turns([*turns, *cut]) == sum_turns(turns)
