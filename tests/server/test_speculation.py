"""Speculation only with a certificate for exactly what is about to run;

in every other case the reason is named.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engine_bindings.certificate_key import read_or_create_key
from engine_bindings.errors import UsageError
from server.launch import check_again
from server.speculation import Decision, SpeculationSwitch, require
from tests.server.gated_server import EVIDENCE, Gated, build_gated


@pytest.fixture
def gated(tmp_path: Path) -> Gated:
    return build_gated(tmp_path, datetime(2026, 11, 30, 12, tzinfo=UTC))


def test_a_valid_certificate_switches_mtp_on(gated: Gated) -> None:
    decision = gated.decide()
    assert decision == Decision(
        enabled=True,
        depth=2,
        reason=f"certified by run {EVIDENCE.run_id} up to depth 2",
        run_id=EVIDENCE.run_id,
    )
    assert decision.sentence == f"MTP on, depth 2: {decision.reason}"
    require(decision)


def test_a_lower_depth_is_covered(gated: Gated) -> None:
    assert gated.decide(depth=1).depth == 1


def append_byte(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit_certificate(gated: Gated) -> None:
    assert gated.settings.certificate is not None
    path = gated.settings.certificate / "certificate.json"
    path.write_text(path.read_text().replace('"tokens_compared": 100', '"tokens_compared": 900'))


def model_dir(gated: Gated) -> Path:
    assert gated.settings.model_dir is not None
    return gated.settings.model_dir


CHANGES: dict[str, tuple[Callable[[Gated], object], str]] = {
    "engine byte": (lambda gated: append_byte(gated.engine), "engine_digest"),
    "weights byte": (lambda gated: flip_last_byte(model_dir(gated) / "model.safetensors"), "weights_digest"),
    "config byte": (lambda gated: append_byte(model_dir(gated) / "config.json"), "config_digest"),
    "tokenizer byte": (lambda gated: append_byte(model_dir(gated) / "tokenizer.json"), "tokenizer_digest"),
    "template byte": (lambda gated: append_byte(model_dir(gated) / "chat_template.jinja"), "template_digest"),
    "edited": (edit_certificate, "seal"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_switches_mtp_off_and_is_named(gated: Gated, name: str) -> None:
    change, field = CHANGES[name]
    change(gated)
    decision = gated.decide()
    assert (decision.enabled, decision.depth, decision.field) == (False, 0, field)
    assert field in decision.sentence


def test_another_depth_slots_key_and_time(gated: Gated, tmp_path: Path) -> None:
    other_key = tmp_path / "other"
    read_or_create_key(other_key)
    late = replace(gated, now=gated.now + timedelta(days=400))
    assert gated.decide(depth=3).field == "depth"
    assert gated.decide(kv_slots=2).field == "kv_slots"
    assert gated.decide(key_file=other_key).field == "seal"
    assert late.decide().field == "expires_at"
    for decision in (gated.decide(depth=3), gated.decide(kv_slots=2), late.decide()):
        assert not decision.enabled


def test_no_certificate_or_an_unreadable_one(gated: Gated, tmp_path: Path) -> None:
    assert "no certificate was given" in gated.decide(certificate=None).reason
    assert gated.decide(depth=0).reason == "--depth 0 was asked for"
    missing = gated.decide(certificate=tmp_path / "nothing")
    assert (missing.enabled, missing.field) == (False, "certificate")
    no_key = gated.decide(key_file=tmp_path / "no-key")
    assert (no_key.enabled, no_key.field) == (False, "certificate")


def test_require_makes_it_an_error(gated: Gated) -> None:
    with pytest.raises(UsageError, match="MTP is required and would be off: no certificate"):
        require(gated.decide(certificate=None))


def test_the_switch_only_goes_off() -> None:
    switch = SpeculationSwitch(Decision(enabled=True, depth=2, reason="certified", run_id="run"))
    assert switch.request_depth is None
    switch.trip("an audit differed")
    assert switch.request_depth == 0
    assert switch.decision == Decision(enabled=False, depth=0, reason="an audit differed", run_id="run")


def test_a_later_check_sees_what_changed(gated: Gated) -> None:
    late = gated.now + timedelta(days=400)
    assert check_again(gated.settings, {}, 2, gated.now).enabled
    assert check_again(gated.settings, {}, 2, late).field == "expires_at"
    append_byte(gated.engine)
    assert check_again(gated.settings, {}, 2, gated.now).field == "engine_digest"
    gated.engine.unlink()
    assert check_again(gated.settings, {}, 2, gated.now).enabled is False


def test_a_withdrawn_certificate_is_no_trip_of_the_audit() -> None:
    switch = SpeculationSwitch(Decision(enabled=True, depth=2, reason="certified", run_id="run"))
    switch.withdraw(Decision(enabled=False, depth=0, reason="expired", field="expires_at"))
    assert (switch.tripped, switch.request_depth, switch.decision.reason) == (False, 0, "expired")
