import pytest

from harness.drivers.server_counters import ServerCounts, parse_counts

VLLM = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 40.0
vllm:generation_tokens_total{engine="1",model_name="m"} 2.0
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4
vllm:time_to_first_token_seconds_count 4
vllm:time_to_first_token_seconds_sum 0.5
"""
DRAFTS = """\
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 12.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 7.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 7.0
"""


def test_counters_of_vllm_are_summed_over_engines() -> None:
    assert parse_counts(VLLM + DRAFTS) == ServerCounts(
        generated_tokens=42, drafted_tokens=12, accepted_tokens=7
    )


def test_vllm_without_counters_of_drafts_makes_none() -> None:
    assert parse_counts(VLLM) == ServerCounts(generated_tokens=42, drafted_tokens=0, accepted_tokens=0)


def test_another_server_without_them_does_not_report_drafts() -> None:
    text = "llamacpp:tokens_predicted_total 5\nllamacpp:n_decode_total 9\n"

    assert parse_counts(text) == ServerCounts(generated_tokens=5)


def test_names_of_drafts_after_llama_cpp() -> None:
    text = "x:tokens_predicted_total 5\nx:tokens_drafted_total 4\nx:tokens_drafted_accepted_total 3\n"

    assert parse_counts(text) == ServerCounts(generated_tokens=5, drafted_tokens=4, accepted_tokens=3)


def test_forwards_only_where_they_count_decoding_alone() -> None:
    assert parse_counts("coli_ab:generation_tokens_total 5\ncoli_ab:n_decode_total 3\n") == ServerCounts(
        generated_tokens=5, forwards=3
    )


def test_what_holds_no_such_count_is_none() -> None:
    for text in ("", "<html>", "process_cpu_seconds_total 3\n", "vllm:generation_tokens_total nonsense\n"):
        assert parse_counts(text) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_gauge_that_is_no_number_hides_no_counter(value: str) -> None:
    assert parse_counts(f"{VLLM}vllm:cache_usage {value}\n{DRAFTS}") == ServerCounts(
        generated_tokens=42, drafted_tokens=12, accepted_tokens=7
    )


def test_a_counter_that_is_no_number_does_not_mean_that_there_were_no_drafts() -> None:
    assert parse_counts(f"{VLLM}vllm:spec_decode_num_draft_tokens_total NaN\n") is None


def test_a_total_that_fell_says_nothing() -> None:
    before = ServerCounts(generated_tokens=9, drafted_tokens=5, accepted_tokens=1)
    after = ServerCounts(generated_tokens=3, drafted_tokens=7, accepted_tokens=0)

    assert after.since(before) == ServerCounts(drafted_tokens=2)


def test_a_total_that_is_new_counts_from_0() -> None:
    before = ServerCounts(generated_tokens=1)
    after = ServerCounts(generated_tokens=3, drafted_tokens=2)

    assert after.since(before) == ServerCounts(generated_tokens=2, drafted_tokens=2)
