"""The table of metrics: one entry defines a metric everywhere, and every entry is complete."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import compare, run_sweep, sweep_table
from runner.cli.main import main
from runner.pages.report.comparison import compare_runs
from runner.pages.report.run_site import runs_site
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import FALSE_POSITIVE_RATES, METRICS, Metric, Show, Source
from runner.spec.loader import load_specs
from tests.support.documentation import with_metric_tables
from tests.support.modules import FILES, tree, walk
from tests.support.paths import ROOT
from tests.support.runs import metric, run_spec
from tests.support.specs import spec_file

TOY = Metric(
    name="short_games",
    description="share of games with at most four rounds",
    over="all games",
    source=Source.GAMES,
    compute=lambda game: game.truth(game.rounds <= 4),
    is_proportion=True,
    needs_labels=False,
    sql="(rounds <= 4)::INT::DOUBLE",
    show=Show.SUMMARY | Show.COMPARISON | Show.CURVE | Show.COMPETITION,
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Metric:
    monkeypatch.setitem(METRICS, TOY.name, TOY)
    return TOY


@pytest.mark.gate
def test_a_new_metric_is_one_entry_and_appears_everywhere(
    toy: Metric, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_file(tmp_path, size=6, fine_tune=None, sweep={"protocol.max_message_rounds": [4, 6]})
    short, long = runs = list(run_sweep(load_specs(spec), tmp_path / "results"))
    row = metric(short, toy.name)
    assert (row["value"], row["n"]) == (1.0, 6)
    results = Results(tmp_path / "results")
    (count,) = results.board.query(f"SELECT count(*) FROM metrics WHERE metric = '{toy.name}'")[1]
    assert count == (2,)
    pair = compare(short, long, metric=toy.name).pairs[0]
    assert pair.base_value == 1.0
    assert sweep_table(runs, [toy.name])[0].metrics[toy.name].value == 1.0
    assert any(toy.name in section.html for section in runs_site([short.folder], lambda *_: None).sections)
    comparison_html = compare_runs([run.folder for run in runs], lambda *_: None).sections[0].html
    assert toy.name.replace("_", " ") in comparison_html
    output_options = ["--results", str(results.path), "--out", str(tmp_path / "out")]
    attribution_options = ["--organization", "A", "--relationship", "other", "--subject", "verifier"]
    assert main(["export", short.run_id, "--format", "every-eval-ever", *output_options, *attribution_options]) == 0
    (record,) = (tmp_path / "out").glob("data/*/*/*/*.json")
    exported = {result["metric_config"]["metric_id"] for result in json.loads(record.read_text())["evaluation_results"]}
    assert toy.name in exported
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    assert f"| `{toy.name}` | all games | {toy.description} | larger | yes |" in with_metric_tables(page)
    capsys.readouterr()
    assert main(["completion", "bash"]) == 0
    assert toy.name in capsys.readouterr().out


@pytest.mark.gate
def test_metrics_have_the_same_value_in_python_and_in_sql(tmp_path: Path) -> None:
    """`compare` and sweeps compute from rows of `rollouts` the same values as `metrics.json` has from the games."""
    result = run_spec(spec_file(tmp_path, size=12, fine_tune=None), tmp_path / "results")
    checked = 0
    for definition in METRICS.values():
        if (
            not definition.sql
            or definition.source in (Source.CALLS, Source.JUDGES)
            or definition.is_balanced
            or definition.kind is not None
        ):
            continue
        if not definition.applies(lists_answers=False):
            continue
        for agent in ("verifier", "prover") if definition.is_per_agent else (None,):
            sql = definition.score_sql().replace("{agent}", agent or "")
            query = f"SELECT avg({sql}) FROM rollouts WHERE outcome <> 'transport_failed'"
            ((value,),) = Results.of(result.folder).board.query(query)[1]
            assert value == pytest.approx(metric(result, definition.name, agent)["value"]), definition.name
            checked += 1
    assert checked >= 15


def test_every_metric_has_a_description_a_direction_and_a_comparison_rule() -> None:
    for name, definition in METRICS.items():
        assert definition.name == name
        assert definition.description
        assert definition.over, name
        assert definition.better in (-1, 0, 1)
        assert definition.low < definition.high, name
        assert definition.sql or not definition.is_compared, f"{name}: runs are compared by `sql`"
        assert (definition.compute is None) == (definition.source is Source.CALLS), name
        has_common_method = definition.source in (Source.GAMES, Source.AGENTS, Source.JUDGES, Source.CALLS)
        assert definition.method or definition.rule.never or has_common_method, f"{name}: how is its interval computed?"


SIMILAR = {
    "answer_brier": "brier",
    "answer_ece": "ece",
    "answer_ece_corrected": "ece_corrected",
    "answer_log_score": "log_score",
    "answer_score_difference": "score_difference",
    "answer_score_difference_log": "score_difference",
    "confidence_bounds_logprob": "undecided_0",
    "confidence_disagreement": "undecided_0",
    "episode_length": "calls_per_message",
    "judge_accuracy": "accuracy",
    "judge_advantage": "score_difference",
    "judge_brier_logprob": "brier",
    "judge_brier_stated": "brier",
    "panel_agreement": "accuracy",
    "no_score_logprob": "undecided_0",
    "no_score_stated": "undecided_0",
    "retries_per_round": "calls_per_message",
    "rounds_played": "calls_per_message",
    "score_difference_logprob": "score_difference",
    "token_limit_proportion": "decided",
    "failed_selections": "decided",
    "win_rate": "accuracy",
}
"""Metrics whose coverage was not measured, each with a similar metric whose coverage was."""


MEASURED_BY_MONITORS = {f"tpr_at_fpr_{round(100 * rate):02}" for rate in FALSE_POSITIVE_RATES}
"""The metrics whose coverage `benchmarks/monitors.py` measures."""


def test_the_coverage_of_every_interval_is_measured() -> None:
    text = (ROOT / "benchmarks" / "coverage.md").read_text("utf-8")
    measured = set(re.findall(r"\w+", " ".join(re.findall(r"^\| situation (.*)$", text, re.MULTILINE))))
    measured |= MEASURED_BY_MONITORS
    for definition in METRICS.values():
        if definition.source is Source.CALLS or definition.rule.never is not None:  # no interval
            continue
        assert SIMILAR.get(definition.name, definition.base_name) in measured, (
            f"{definition.name}: measure it with benchmarks/coverage_metrics.py and add it to benchmarks/coverage.md, "
            "or name a similar metric in SIMILAR"
        )
        assert not (definition.name in SIMILAR and definition.base_name in measured), (
            f"{definition.name} is measured itself"
        )


def test_unmeasured_metrics_have_no_interval_where_the_similar_metric_has_none() -> None:
    rules = {definition.base_name: definition.rule for definition in METRICS.values()}
    for name, similar in SIMILAR.items():
        assert METRICS[name].rule.fewest_clusters >= rules[similar].fewest_clusters, name


NAMES_WITH_OTHER_MEANINGS = {
    "answer_brier": "a column of `rollouts`",
    "calls": "a count and a column heading",
    "cost": "a column heading",
    "decided": "an outcome",
    "decision": "a column of `rollouts`, and a key of arrays",
    "recall": "a statistic of the answers of an analyzer",
    "reward": "a key of arrays and training examples",
    "sensitivity": "a statistic of the answers of an analyzer",
    "tokens": "a limit and a unit",
}
"""Names of metrics that also have another meaning."""

EXCEPTIONS = {
    "runner.results.metric_computation": "the names that the original implementation gives its statistics",
    "runner.cli.results.plot": "names of figures; arguments are read without what the figures need",
    "runner.pages.boards.lists": "the columns of a downloaded board",
    "runner.pages.boards.page": "the columns of a downloaded board",
    "runner.registry.lineage.typed_facts": "a fact of releases",
    "runner.server.boards.builder": "a fact of releases",
    "runner.pages.figures.catalog": "a figure has the name of its metric",
}


@pytest.mark.gate
def test_no_other_module_contains_the_name_of_a_metric() -> None:
    """Keys of rows and records are allowed: `accuracy` is a column of the leaderboard and a fact of a release."""
    names = ({*METRICS} | {definition.base_name for definition in METRICS.values()}) - NAMES_WITH_OTHER_MEANINGS.keys()
    occurrences = set()
    for name in FILES:
        if name != "runner.results.metric_definitions":
            occurrences |= {(name, text) for text in _iterate_texts(tree(name)) if text in names}
    modules = {module for module, _ in occurrences}
    unknown = sorted(f"{module}: {text}" for module, text in occurrences if module not in EXCEPTIONS)
    assert not unknown, "name it by a constant or an attribute of runner.results.metric_definitions"
    assert modules == EXCEPTIONS.keys(), "an exception that is none any more"


def _iterate_texts(module: ast.AST) -> Iterator[str]:
    """Yield the texts of a module that are not keys of mappings."""
    keys: set[int] = set()
    for node in walk(module):
        if isinstance(node, ast.Subscript):
            keys |= {id(node.slice)}
        elif isinstance(node, ast.Dict):
            keys |= {id(key) for key in node.keys}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            keys |= {id(argument) for argument in node.args[:1]}
    for node in walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in keys:
            yield node.value
