"""Comparing runs in Python and in SQL: matching of datapoints, tests and verdicts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import duckdb
import pytest

from runner import compare, query, run
from runner.base.errors import RunError, UsageError
from runner.models.logprobs import BOUND
from runner.pages.report.comparison import game_pairs
from runner.results.comparison.comparison import OTHER_TASK, Comparison, SystemComparison
from runner.results.comparison.systems import SystemReader, load_system
from runner.results.leaderboard.results_folder import Results
from runner.results.leaderboard.schema import COMPARISON_COLUMNS
from runner.rollouts.confidence import BY_LOGPROBS
from tests.compatibility.old import RUNS, copy_old_files
from tests.results.comparison.planted import SIZE, other_system_override, play_with_planted_verdicts, write_solo_spec
from tests.support.runs import metric, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def get_only_pair(comparison: Comparison) -> SystemComparison:
    (pair,) = comparison.pairs
    return pair


def test_better_run_is_named_with_the_difference_and_its_interval(results: Path) -> None:
    pair = get_only_pair(compare("fair", "good", results=results))
    assert (pair.base_value, pair.other_value, pair.datapoints, pair.groups) == (0.6, 0.9, SIZE, SIZE)
    assert pair.difference == pytest.approx(0.3)
    assert (pair.differing, pair.exact) == (12, True)
    assert pair.p == 2 / 2**12
    assert pair.mid_p_mcnemar == pytest.approx(1 / 2**12)
    assert pair.verdict.startswith("good is better by 30 points [14, 4")
    reversed_pair = get_only_pair(compare("good", "fair", results=results))
    assert reversed_pair.verdict == pair.verdict
    assert [reversed_pair.difference, reversed_pair.ci_low] == pytest.approx([-pair.difference, -(pair.ci_high or 0)])


def test_verdict_without_evidence_states_the_detectable_difference(results: Path) -> None:
    pair = get_only_pair(compare("good", "same", results=results))
    assert pair.p == 1.0
    assert pair.verdict.startswith("no evidence of a difference: same minus good is 0 points [-")
    assert pair.verdict.endswith(" points or more would be detected with 80 % power")
    assert "underpowered: only differences of 20" in pair.verdict


@pytest.mark.full
def test_several_comparisons_have_intervals_that_agree_with_their_corrected_p_values(results: Path) -> None:
    """An unadjusted interval could contradict a corrected p-value."""
    comparison = compare("good", "fair", "same", "often", results=results)
    assert len(comparison.pairs) == 3
    for pair in comparison.pairs:
        assert pair.p is not None
        assert pair.p_corrected is not None
        assert pair.ci_low_corrected is not None
        assert pair.ci_high_corrected is not None
        assert (pair.ci_low_corrected <= 0 <= pair.ci_high_corrected) == (pair.p_corrected > 0.05)
        assert pair.ci_low is not None
        assert pair.ci_low_corrected < pair.ci_low
        assert "interval and p-value are adjusted for 6 comparisons (Holm)" in pair.verdict
    assert "adjusted for all pairs of the 4 systems" in comparison.notes[-1]
    single_pair = get_only_pair(compare("good", "fair", results=results))
    assert (single_pair.ci_low_corrected, single_pair.ci_high_corrected) == (single_pair.ci_low, single_pair.ci_high)
    assert "adjusted" not in single_pair.verdict


def test_comparisons_with_a_baseline_are_adjusted_for_fewer_pairs_than_with_the_best_run(results: Path) -> None:
    """The best of ten equal runs would be better than another one in 12 % of cases, adjusted for nine comparisons."""
    best, baseline = (
        compare("fair", "good", "same", results=results),
        compare("fair", "same", baseline="good", results=results),
    )
    assert [[pair.base, pair.other] for pair in best.pairs] == [["good", "fair"], ["good", "same"]]
    assert [pair.p_corrected for pair in best.pairs] == [3 * 2 / 2**12, 1.0]
    assert [pair.p_corrected for pair in baseline.pairs] == [2 * 2 / 2**12, 1.0]


def test_an_adjusted_p_value_of_1_does_not_narrow_the_adjusted_interval(results: Path) -> None:
    pair, _ = compare("good", "half", baseline="same", results=results).pairs
    assert (pair.p, pair.p_corrected) == (1.0, 1.0)
    low, high = pair.adjusted_interval
    assert (low or 0) < (pair.ci_low or 0) < 0 < (pair.ci_high or 0) < (high or 0)


@pytest.mark.full
def test_the_assumption_behind_the_detectable_difference_is_stated(results: Path) -> None:
    note = (
        "detectable: the difference that the sign-flip test at 5 % detects with 80 % power, if the differences between "
        "groups spread as in these data"
    )
    assert compare("good", "same", results=results).power_assumption == note
    several = compare("good", "fair", "same", results=results).power_assumption
    assert several == note.replace("5 %", "5 % without an adjustment for several comparisons")
    assert compare("good", "half", results=results).power_assumption is None  # two samples of one system: no test


@pytest.mark.full
def test_equivalence_is_tested_within_a_margin(results: Path) -> None:
    close, wide = (get_only_pair(compare("good", "same", results=results, margin=margin)) for margin in (0.02, 0.3))
    assert close.equivalence is not None
    assert wide.equivalence is not None
    assert (close.equivalence.is_shown, wide.equivalence.is_shown) == (False, True)
    assert close.describe_equivalence().startswith("not shown to be equivalent within 2 points (two one-sided tests: p")
    assert wide.describe_equivalence().startswith(
        "equivalent within 30 points (two one-sided tests: p = 0.0001; 90 % CI [-"
    )
    assert get_only_pair(compare("good", "same", results=results)).equivalence is None
    with pytest.raises(UsageError, match="the equivalence margin must be above 0"):
        compare("good", "same", results=results, margin=0.0)


def test_the_difference_of_sensitivities_is_tested_with_accuracy(results: Path) -> None:
    effect = get_only_pair(compare("fair", "good", results=results)).sensitivity
    assert effect is not None
    assert effect.difference == pytest.approx(effect.second - effect.first)
    assert 0 < effect.ci_low < effect.difference < effect.ci_high
    assert effect.p <= 0.05
    assert get_only_pair(compare("fair", "good", results=results, metric="calls")).sensitivity is None


@pytest.mark.gate
def test_the_recovered_share_of_the_gap_to_a_ceiling(results: Path) -> None:
    pair = get_only_pair(compare("fair", "same", results=results, ceiling="good"))
    assert pair.gap_recovered is not None
    assert pair.gap_recovered.value == pytest.approx(1.0)  # `same` is as often right as `good`
    assert pair.gap_recovered.low is not None
    assert pair.gap_recovered.high is not None
    assert 0 < pair.gap_recovered.low < 1 < pair.gap_recovered.high
    undefined_share = get_only_pair(compare("good", "same", results=results, ceiling="fair")).gap_recovered
    assert undefined_share is not None
    assert (undefined_share.value, undefined_share.reason) == (None, "the ceiling is not better than the weak system")


@pytest.mark.full
def test_flips_are_listed_with_a_rollout_of_each_run(results: Path) -> None:
    comparison = compare("good", "same", results=results)
    assert [(flip.datapoint, flip.right_in) for flip in comparison.flips] == [("p0", "good"), ("p36", "same")]
    tables = {run: {row[0]: row[1] for row in _read_rollouts(results, run)} for run in ("good", "same")}
    for flip in comparison.flips:
        assert tables[flip.base_run][flip.base_rollout] == tables[flip.other_run][flip.other_rollout] == flip.datapoint


def _read_rollouts(results: Path, run: str) -> list[tuple[str, str]]:
    return query(f"SELECT rollout_id, datapoint_id FROM rollouts WHERE run_id = '{run}'", results).fetchall()


def test_repeats_count_by_their_datapoint(results: Path) -> None:
    pair = get_only_pair(compare("good", "often", results=results))
    assert pair.other_value == pytest.approx(0.6)
    assert pair.mid_p_mcnemar is None
    assert pair.difference == pytest.approx(-0.3)
    assert (pair.groups, pair.differing, pair.flips) == (SIZE, 36, ())
    assert pair.verdict.startswith("good is better by 30 points")


def _is_right_on_every_other(seed: int, datapoint: int, _: int) -> bool:
    return datapoint % 2 == seed % 2


@pytest.mark.full
def test_seeds_are_pooled_as_repeats_of_one_system(folder: Path, results: Path) -> None:
    path = folder / "spec.yaml"
    for seed_number in (1, 2):
        play_with_planted_verdicts(
            path, results, f"pool{seed_number}", partial(_is_right_on_every_other, seed_number), f"seed={seed_number}"
        )
    comparison = compare(["pool1", "pool2"], "good", results=results)
    pair = get_only_pair(comparison)
    assert comparison.systems["pool1 and 1 more"] == ("pool1", "pool2")
    assert (pair.base_value, pair.datapoints, pair.flips) == (0.5, SIZE, ())
    seed_comparison = compare("pool1", "pool2", results=results, margin=0.5)
    assert "pool1, pool2 play the same game" in " ".join(seed_comparison.notes)
    assert get_only_pair(seed_comparison).verdict.startswith("two samples of one system")
    assert (
        get_only_pair(seed_comparison).p,
        get_only_pair(seed_comparison).equivalence,
        get_only_pair(seed_comparison).sensitivity,
    ) == (None, None, None)
    sliced = compare("pool1", "pool2", results=results, by="label")
    assert all(row.groups > 1 and row.p is None for row in sliced.slices)
    assert not any("single group" in note for note in sliced.notes)


@pytest.mark.full
def test_runs_of_different_games_are_not_pooled(folder: Path, results: Path) -> None:
    run_spec(folder / "spec.yaml", results, "retry.invalid_response.attempts=2", run_id="other-game")
    with pytest.raises(UsageError, match=r"other-game play another game than good.*with a space between"):
        compare(["good", "other-game"], "fair", results=results)


def test_shared_datapoints_are_matched_and_the_others_listed(results: Path) -> None:
    pair = get_only_pair(compare("half", "good", results=results))
    assert (pair.datapoints, pair.paired) == (20, True)
    assert (pair.base_value, pair.other_value) == (0.9, 1.0)
    assert pair.only_base == ()
    assert pair.only_other == tuple(sorted(f"p{i}" for i in range(20, 40)))


@pytest.mark.full
def test_datapoints_are_matched_by_content_regardless_of_ids(folder: Path, results: Path) -> None:
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    for row in rows:
        row["id"] = f"q{row['id'][1:]}"
    rows[3]["solution"] += "# another\n"
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_spec(folder / "spec.yaml", results, f"dataset.path={folder}/other.jsonl", run_id="renamed")
    pair = get_only_pair(compare("good", run, results=results))
    assert (pair.datapoints, pair.only_base, pair.only_other) == (SIZE - 1, ("p3",), ("q3",))
    renamed = "39 with another id (such as 'q0' instead of 'p0'), 1 missing (such as 'p3'), 1 additional (such as 'q3')"
    assert pair.notes == (f"{OTHER_TASK}renamed against good: datapoints differ: {renamed}",)


@pytest.mark.gate
def test_compare_and_leaderboards_agree_on_tasks_and_name_the_differences(tmp_path: Path) -> None:
    path, results = write_solo_spec(tmp_path, size=12, dataset={"group_by": "family"}), tmp_path / "results"
    lines = (tmp_path / "data.jsonl").read_text().splitlines()
    rows = [json.loads(line) | {"family": f"f{i // 3}"} for i, line in enumerate(lines)]
    changes: dict[str, tuple[int, dict[str, object], str | None, str | None]] = {
        "first": (0, {}, None, None),
        "wider": (5, {"unused": "x"}, None, None),
        "groups": (5, {"family": "f2"}, "1 with another group (such as 'p5')", "p5"),
        "ids": (7, {"id": "q7"}, "1 with another id (such as 'q7' instead of 'p7')", "p7"),
        "labels": (2, {"label": 1, "solution": "another"}, "1 with another label, solution (such as 'p2')", "p2"),
    }
    for seed, (name, (index, change, _, _)) in enumerate(changes.items()):
        data = [row | (change if i == index else {}) for i, row in enumerate(rows)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
        play_with_planted_verdicts(
            path,
            results,
            name,
            lambda i, _: i > 3,
            f"dataset.path={tmp_path}/{name}.jsonl",
            other_system_override(seed),
        )
    reasons = dict(query("SELECT run_id, reason FROM leaderboard", results).fetchall())
    for name, (_, _, difference, datapoint) in list(changes.items())[1:]:
        notes = [note for note in get_only_pair(compare("first", name, results=results)).notes if "repeats" not in note]
        if difference is None:
            assert (notes, reasons[name]) == ([], None)
            continue
        assert notes == [f"{OTHER_TASK}{name} against first: datapoints differ: {difference}"]
        assert reasons[name] == (
            f"other datapoints, such as {datapoint}: ids, groups, labels or contents differ; `nip-run compare` says how"
        )


@pytest.mark.full
def test_identical_datapoints_are_paired_one_to_one(folder: Path, results: Path) -> None:
    rows = [{"id": name, "label": 1, "question": "same", "solution": "same"} for name in ("a", "b", "c")]
    for name, part in (("three", rows), ("two", rows[1:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        run_spec(folder / "spec.yaml", results, f"dataset.path={folder}/{name}.jsonl", run_id=name)
    pair = get_only_pair(compare("three", "two", results=results))
    assert (pair.datapoints, pair.only_base, pair.only_other) == (2, ("a",), ())


@pytest.mark.full
def test_runs_without_shared_datapoints_are_compared_unpaired(folder: Path, results: Path) -> None:
    (folder / "elsewhere").mkdir()
    path = write_solo_spec(folder / "elsewhere", size=SIZE)
    rows = [json.loads(line) for line in (path.parent / "data.jsonl").read_text().splitlines()]
    (path.parent / "data.jsonl").write_text(
        "".join(json.dumps(row | {"question": "?" + row["id"]}) + "\n" for row in rows)
    )
    play_with_planted_verdicts(path, results, "strange", lambda i, _: i < 20, other_system_override(4))
    pair = get_only_pair(compare("good", "strange", results=results))
    assert (pair.paired, pair.differing, pair.only_base, pair.only_other) == (False, None, (), ())
    assert (pair.base_value, pair.other_value, pair.p is not None and pair.p < 1e-4) == (0.9, 0.5, True)
    assert pair.verdict.startswith("good is better by 40 points")
    assert pair.verdict.endswith("]; on other datapoints (unpaired)")
    assert pair.notes == (
        f"{OTHER_TASK}strange against good: datapoints differ: 40 with another question (such as 'p0')",
        "unpaired: they share no datapoint, so both datapoints and systems differ",
    )


@pytest.mark.full
def test_groups_are_the_units_of_the_test(tmp_path: Path) -> None:
    path = write_solo_spec(tmp_path, size=12, dataset={"group_by": "family"})
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    rows = [row | {"family": f"f{i // 3}"} for i, row in enumerate(rows)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = tmp_path / "results"
    play_with_planted_verdicts(path, results, "a", lambda _, __: True)
    play_with_planted_verdicts(path, results, "b", lambda i, _: i >= 6, "seed=8", other_system_override(1))
    pair = get_only_pair(compare("a", "b", results=results))
    assert (pair.datapoints, pair.groups, pair.differing, pair.mid_p_mcnemar) == (12, 4, 2, None)
    assert pair.p == 0.5  # both of two groups differ one way
    assert "4 groups of datapoints cannot tell: p is 0.1250 at best" in pair.verdict
    by_group = compare("a", "b", results=results, by="family")
    assert any(
        note.startswith("4 of 4 slices by 'family' have a single group of datapoints") for note in by_group.notes
    )
    ((p, groups, differing),) = query(
        "SELECT p, groups, differing FROM comparisons WHERE run_a = 'a' AND run_b = 'b'", results
    ).fetchall()
    assert (p, groups, differing) == (0.5, 4, 2)


@pytest.mark.gate
def test_a_run_that_lost_all_its_rollouts_is_not_compared(tmp_path: Path) -> None:
    spec, results = write_solo_spec(tmp_path, size=4), tmp_path / "results"
    for number, name in enumerate(("good", "lost")):
        play_with_planted_verdicts(spec, results, name, lambda i, repeat: True, other_system_override(number))
    folder = Results(results).run("lost")
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS FROM '{folder.table('rollouts')}'")
        connection.execute("UPDATE t SET outcome = 'transport_failed'")
        connection.execute(f"COPY t TO '{folder.table('rollouts')}' (FORMAT parquet)")
    with pytest.raises(UsageError, match="no rollout of lost has a score for accuracy"):
        compare("good", "lost", results=results)


def test_a_run_is_not_compared_with_itself(results: Path) -> None:
    for names in (("good", "fair", "good"), ("good", "good"), (["good", "half"], "half")):
        with pytest.raises(UsageError, match=r"(good|half) is in two of the compared systems|play another game"):
            compare(*names, results=results)
    with pytest.raises(UsageError, match="good is in two of the compared systems"):
        compare("fair", "good", baseline="good", results=results)


@pytest.mark.full
def test_replay_is_not_a_new_sample(tmp_path: Path) -> None:
    path, results = write_solo_spec(tmp_path, size=3), tmp_path / "results"
    run_spec(path, results, run_id="first")
    run(path, results, replay="first", run_id="again")
    comparison = compare("first", "again", results=results)
    pair = get_only_pair(comparison)
    assert pair.verdict == "no test: again: a replay, the same answers and no new sample; again minus first is 0 points"
    assert (pair.p, pair.ci_low, pair.ci_high, pair.stderr) == (None, None, None, None)
    assert comparison.notes == ()
    with pytest.raises(UsageError, match="first and again have the same answers"):
        compare(["first", "again"], baseline="first", results=results)


@pytest.mark.full
def test_leader_is_determined_by_datapoints_that_all_runs_share(results: Path) -> None:
    assert {pair.base for pair in compare("half", "often", "good", results=results).pairs} == {"good"}
    with pytest.raises(UsageError, match=r"no leader: all these share 0 groups of datapoints \(each has: good 40"):
        compare("good", "fair", _play_on_another_datapoint(results), results=results)


def _play_on_another_datapoint(results: Path) -> str:
    """Play a run on one datapoint that no other run has."""
    (results.parent / "apart").mkdir()
    path = write_solo_spec(results.parent / "apart", size=1)
    data = path.parent / "data.jsonl"
    data.write_text(json.dumps(json.loads(data.read_text()) | {"question": "another"}) + "\n")
    return play_with_planted_verdicts(path, results, "apart", lambda _, __: True)


@pytest.mark.full
def test_slices_are_in_order_and_of_one_value_in_both_runs(tmp_path: Path) -> None:
    path, results = write_solo_spec(tmp_path, size=8), tmp_path / "results"
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    values = [10, 10.0, 2, "2", None, None, "b", "b"]
    for name, column in (("a", values), ("b", values), ("c", [*values[:7], "c"])):
        data = [row | {"hard": value} for row, value in zip(rows, column, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
        run_spec(path, results, f"dataset.path={tmp_path}/{name}.jsonl", other_system_override(ord(name)), run_id=name)
    comparison = compare("a", "b", results=results, by="hard")
    assert [(slice_row.slice, slice_row.datapoints) for slice_row in comparison.slices] == [
        ("2", 2),
        ("10", 2),
        ("b", 2),
        ("(null)", 2),
    ]
    assert "2 groups of datapoints cannot tell: p is 0.5000 at best" in comparison.slices[0].verdict
    with pytest.raises(UsageError, match="column 'hard' differs between the runs: p7 is b in a and c in c"):
        compare("a", "c", results=results, by="hard")
    by_question = compare("a", "b", results=results, by="question")
    assert all(slice_row.p is None or slice_row.datapoints > 1 for slice_row in by_question.slices)


def test_lower_value_is_better_for_error_metrics(results: Path) -> None:
    pair = get_only_pair(compare("fair", "good", results=results, metric="soundness_error"))
    assert pair.base_value == pytest.approx(8 / 20)
    assert pair.verdict.startswith("good is better by 30 points [")
    assert (pair.ci_high or 0) < 0


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("metric", "value"),
    [("accuracy_0", 0.6), ("completeness", 0.6), ("balanced_accuracy", 0.6), ("decided", 1.0),
     ("verifier.reward", None), ("calls", None), ("rounds_played", 1.0), ("cost", 0.0)],
)  # fmt: skip
def test_every_kind_of_metric_is_compared(results: Path, metric: str, value: float | None) -> None:
    pair = get_only_pair(compare("fair", "good", results=results, metric=metric))
    assert value is None or pair.base_value == pytest.approx(value)
    assert pair.datapoints == (20 if metric in ("accuracy_0", "completeness") else SIZE)


def test_probabilities_that_are_only_bounds_have_no_test_and_no_interval(tmp_path: Path) -> None:
    """`metrics.json` has no interval for them either."""
    spec = write_solo_spec(
        tmp_path, size=30, models={"m": {"logprobs": True, "top_logprobs": 5}}, verdict={"confidence": "logprob"}
    )
    results = tmp_path / "results"
    for run_id, share in (("known", 0.0), ("bounds", 0.2)):
        folder = run_spec(spec, results, other_system_override(len(run_id)), run_id=run_id).folder
        folder.unseal()
        rollouts = folder.table("rollouts")
        with duckdb.connect(":memory:") as connection:
            connection.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{rollouts}') ORDER BY rollout_id")
            note = f"CASE WHEN rowid < 30 * {share} THEN '{BY_LOGPROBS}{BOUND}' END"
            connection.execute(f"COPY (SELECT * REPLACE ({note} AS confidence_note) FROM t) TO '{rollouts}'")
    compared = compare(
        "known", "bounds", results=results, metric="auroc_logprob", asserts=["auroc_logprob >= base - 1"]
    )
    pair, reason = get_only_pair(compared), "bounds: 20% of the probabilities are only bounds"
    assert pair.verdict.startswith(f"no test: {reason}")
    assert (pair.p, pair.ci_low, pair.ci_high) == (None, None, None)
    assert [(row.held, reason in str(row.reason)) for row in compared.asserted] == [("cannot be decided", True)]
    values = compare("known", "bounds", results=results, asserts=["auroc_logprob >= 0"]).asserted
    assert [row.held for row in values] == ["holds", "cannot be decided"]


def test_balanced_accuracy_has_the_interval_of_the_metrics_of_the_run(tmp_path: Path) -> None:
    """If three datapoints have one of the labels, the error of their accuracy is not zero but unknown."""
    path, results = write_solo_spec(tmp_path, size=40), tmp_path / "results"
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    for limit in (3, 20):
        lines = [json.dumps(row) + "\n" for row in rows if row["label"] or int(row["id"][1:]) < 2 * limit]
        (tmp_path / "data.jsonl").write_text("".join(lines))
        played = run_spec(path, results, f"name=with-{limit}")
        expected = metric(played, "balanced_accuracy")
        (judged,) = compare(played.run_id, results=results, asserts=["balanced_accuracy >= 0.01"]).asserted
        assert (judged.value, judged.ci_low, judged.ci_high) == pytest.approx(
            (expected["value"], expected["ci_low"], expected["ci_high"])
        )
        assert judged.held == ("cannot be decided" if limit == 3 else "holds")
        other = run_spec(path, results, f"name=other-{limit}", other_system_override(1))
        pair = get_only_pair(compare(played.run_id, other.run_id, results=results, metric="balanced_accuracy"))
        assert (pair.ci_low is None) == (pair.p is None) == (limit == 3), pair.verdict


PRICED_MODELS = {
    "cheap": {"provider": "dummy", "price": {"input": 1, "output": 1}, "answer_words": 5},
    "dear": {"provider": "dummy", "price": {"input": 1_000, "output": 1_000}, "answer_words": 80},
}


def test_costs_of_games_sum_to_the_cost_of_a_run_with_swapped_seats(tmp_path: Path) -> None:
    agents = {
        "prover": None,
        "prover0": {"model": "cheap"},
        "prover1": {"model": "dear"},
        "verifier": {"model": "cheap"},
    }
    spec = spec_file(
        tmp_path, protocol={"use": "debate"}, prompts="prompts/code_validation/debate", agents=agents,
        models={"m": None, **PRICED_MODELS}, stances="both", seats="swap", fine_tune=None,
    )  # fmt: skip
    _assert_that_compared_costs_sum_to_the_cost_of_the_run(spec, tmp_path / "results")


def test_costs_of_games_include_the_calls_of_selectors_of_candidates(tmp_path: Path) -> None:
    agents = {"prover": None, **{name: {"model": "dear"} for name in ("prover0", "prover1", "verifier")}}
    spec = spec_file(
        tmp_path, protocol={"use": "best_of_n_debate", "max_message_rounds": None}, agents=agents,
        prompts="prompts/passages/best_of_n_debate", models={"m": None, **PRICED_MODELS}, fine_tune=None,
    )  # fmt: skip
    path = tmp_path / "data.jsonl"
    rows = [json.loads(line) | {"passage": "x + 1", "claim": "one"} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _assert_that_compared_costs_sum_to_the_cost_of_the_run(spec, tmp_path / "results")


def test_pairs_of_games_have_the_same_stances_and_seats_even_if_a_game_was_lost(tmp_path: Path) -> None:
    agents = {
        "prover": None,
        "prover0": {"model": "cheap"},
        "prover1": {"model": "dear"},
        "verifier": {"model": "cheap"},
    }
    spec = spec_file(
        tmp_path, size=4, protocol={"use": "debate"}, prompts="prompts/code_validation/debate", agents=agents,
        models={"m": None, **PRICED_MODELS}, stances="both", seats="swap", fine_tune=None,
    )  # fmt: skip
    results, form = tmp_path / "results", "datapoint_id, repeat, swapped, stances_exchanged"
    folders = [run_spec(spec, results, f"seed={seed}").folder for seed in (0, 1)]
    lost = folders[0].table("rollouts")
    folders[0].unseal()
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM read_parquet('{lost}') ORDER BY {form}")
        outcome = "CASE WHEN rowid = 5 THEN 'transport_failed' ELSE outcome END AS outcome"
        connection.execute(f"COPY (SELECT * REPLACE ({outcome}) FROM t) TO '{lost}'")
        forms: dict[str, tuple[object, ...]] = {}
        for folder in folders:
            rows = connection.execute(f"SELECT rollout_id, {form} FROM '{folder.table('rollouts')}'").fetchall()
            forms |= {row[0]: row[1:] for row in rows}
    base_system, other_system = (load_system([folder.path], Results(results)) for folder in folders)
    pairs = list(game_pairs(base_system, other_system, SystemReader()))
    complete = [(pair.base.rollout_id, pair.other.rollout_id) for pair in pairs if pair.base and pair.other]
    assert (len(pairs), len(complete)) == (16, 15)
    assert all(forms[base] == forms[other] for base, other in complete)


def _assert_that_compared_costs_sum_to_the_cost_of_the_run(spec: Path, results: Path) -> None:
    played, other = (run_spec(spec, results, f"seed={seed}") for seed in (0, 1))
    games = sum(played.metrics["outcomes"].values())
    pair = get_only_pair(compare(played.run_id, other.run_id, results=results, metric="cost"))
    manifest = played.folder.manifest()
    assert manifest.cost_usd
    assert pair.base_value * games == pytest.approx(manifest.cost_usd)


def test_metric_without_scores_and_unknown_metric_are_refused(results: Path) -> None:
    with pytest.raises(UsageError, match="no rollout of good has a score for brier_stated"):
        compare("good", "fair", results=results, metric="brier_stated")
    with pytest.raises(UsageError, match="no metric 'acuracy' to compare by; did you mean 'accuracy'"):
        compare("good", "fair", results=results, metric="acuracy")


def test_slices_are_corrected_for_their_number(results: Path) -> None:
    comparison = compare("fair", "good", results=results, by="label")
    assert [slice_row.slice for slice_row in comparison.slices] == ["0", "1"]
    assert [(slice_row.datapoints, slice_row.p, slice_row.p_corrected) for slice_row in comparison.slices] == [
        (20, 1 / 32, 1 / 16)
    ] * 2
    assert all(
        "no evidence" in slice_row.verdict and "adjusted for 2 comparisons" in slice_row.verdict
        for slice_row in comparison.slices
    )
    assert [(slice_row.ci_low_corrected, (slice_row.ci_low or 0) > 0) for slice_row in comparison.slices] == [
        (0.0, True)
    ] * 2
    with pytest.raises(UsageError, match="has no column 'topic'; it has: label, question, solution"):
        compare("fair", "good", results=results, by="topic")


@pytest.mark.full
def test_a_baseline_is_found_by_task_and_verifier(folder: Path, results: Path) -> None:
    debate = spec_file(folder, size=SIZE, name="nip", fine_tune=None)
    play_with_planted_verdicts(debate, results, "debated", lambda _, __: True)
    with pytest.raises(
        UsageError, match=r"games of protocol 'solo_verifier' are comparable with debated: .* Choose one"
    ):
        compare("debated", baseline="solo_verifier", results=results)
    pair = get_only_pair(compare("debated", baseline="fair", results=results))
    assert (pair.base, pair.other) == ("fair", "debated")
    assert pair.difference == pytest.approx(0.4)
    pair = get_only_pair(compare("fair", baseline="nip", results=results))
    assert (pair.base, pair.other) == ("debated", "fair")
    with pytest.raises(UsageError, match="no finished run of protocol 'nip' has the task of half"):
        compare("half", baseline="nip", results=results)


@pytest.mark.full
def test_rollouts_lost_in_transport_are_not_compared(tmp_path: Path) -> None:
    with run_chat_server(malformed="returns x + 3.") as server:
        path = write_solo_spec(tmp_path, size=6)
        text = path.read_text().replace('"provider": "dummy"', '"provider": "openai", "model": "tiny"')
        path.write_text(text)
        run = run_spec(
            path, tmp_path / "results", f"models.m.base_url={server.base_url}", "rollouts.max_transport_failed=1"
        )
        other_run = run_spec(
            path,
            tmp_path / "results",
            f"models.m.base_url={server.base_url}",
            "rollouts.max_transport_failed=1",
            "seed=8",
        )
    comparison = compare(run, other_run, results=tmp_path / "results")
    assert get_only_pair(comparison).datapoints == 5
    assert f"{run.run_id}: 1 rollout lost in transport and not counted" in comparison.notes


@pytest.mark.full
def test_incomparable_runs_are_refused_with_the_reason(results: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name at least two runs"):
        compare("good", results=results)
    with pytest.raises(UsageError, match="no run 'none'"):
        compare("good", "none", results=results)
    path = write_solo_spec(tmp_path, size=4)
    for name in ("a", "b"):
        run_spec(path, tmp_path / "results", f"name={name}", run_id=name)
    (tmp_path / "results" / "runs" / "a" / "inputs" / "dataset.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match=r"the inputs of .*/a cannot be read"):
        compare("a", "b", results=tmp_path / "results")


@pytest.mark.full
def test_runs_of_0_1_0_can_be_compared(tmp_path: Path) -> None:
    copy_old_files(tmp_path)
    results = tmp_path / "results"
    comparison = compare(RUNS["finished"], RUNS["served"], results=results)
    assert comparison.verdict
    with pytest.raises(UsageError, match="is a training run; compare its games or tests: "):
        compare(RUNS["finished"], RUNS["learning"], results=results)
    sweep_run_ids = [folder.run_id for folder in Results(results).runs() if folder.run_id.startswith("sweep-")]
    pair = get_only_pair(compare(*sweep_run_ids, results=results))
    ((difference, p),) = query(
        f"SELECT difference, p FROM comparisons WHERE run_a = '{sweep_run_ids[0]}' AND run_b = '{sweep_run_ids[1]}'",
        results,
    ).fetchall()
    assert (pair.difference, pair.p) == (difference, p)


@pytest.mark.full
def test_sql_views_have_the_same_values(results: Path) -> None:
    pair = get_only_pair(compare("fair", "good", results=results))
    columns = ", ".join(name for name in COMPARISON_COLUMNS if name not in ("run_a", "run_b", "task"))
    rows = query(f"SELECT {columns} FROM comparisons WHERE run_a = 'fair' AND run_b = 'good'", results).fetchall()
    assert rows == [
        (pytest.approx(pair.base_value), pytest.approx(pair.other_value), pytest.approx(pair.difference),
         pytest.approx(pair.stderr), pytest.approx(pair.ci_low), pytest.approx(pair.ci_high), pair.p,
         pytest.approx(pair.detectable), pair.datapoints, pair.groups, pair.differing, None)
    ]  # fmt: skip
    flips = query(
        "SELECT datapoint_id, right_in, rollout_a, rollout_b FROM flips WHERE run_a = 'good' AND run_b = 'same' "
        "ORDER BY datapoint_id",
        results,
    ).fetchall()
    expected_flips = compare("good", "same", results=results).flips
    assert flips == [(flip.datapoint, flip.right_in, flip.base_rollout, flip.other_rollout) for flip in expected_flips]


@pytest.mark.full
def test_planted_verdicts_are_read_by_compare(tmp_path: Path) -> None:
    """Check the helper of these tests: an undecided rollout counts as wrong, not as lost."""
    play_with_planted_verdicts(
        write_solo_spec(tmp_path, size=4), tmp_path / "results", "one", lambda i, _: None if i == 0 else True
    )
    second = play_with_planted_verdicts(
        write_solo_spec(tmp_path, size=4), tmp_path / "results", "two", lambda _, __: True, "seed=8"
    )
    pair = get_only_pair(compare("one", second, results=tmp_path / "results", metric="undecided_0"))
    assert (pair.base_value, pair.other_value, pair.datapoints) == (0.5, 0.0, 2)


@pytest.mark.gate
def test_same_model_name_at_two_addresses_is_noted(tmp_path: Path) -> None:
    with run_chat_server() as first, run_chat_server() as second:
        path = write_solo_spec(tmp_path, size=4)
        path.write_text(path.read_text().replace('"provider": "dummy"', '"provider": "openai", "model": "tiny"'))
        first_run, repeated_run, other_server_run = (
            run_spec(path, tmp_path / "results", f"models.m.base_url={address}", f"seed={seed}")
            for address, seed in ((first.base_url, 1), (first.base_url, 2), (second.base_url, 3))
        )
    note_start = f"models.m has two addresses ({first.base_url}, {second.base_url})"
    assert any(
        note.startswith(note_start)
        for note in get_only_pair(compare(first_run, other_server_run, results=tmp_path / "results")).notes
    )
    assert not any(
        "addresses" in note
        for note in get_only_pair(compare(first_run, repeated_run, results=tmp_path / "results")).notes
    )
