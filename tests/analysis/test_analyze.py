"""`nip-run analyze`: the prompts of the model, the recorded results, and what is never requested."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import query
from runner.analysis.results import AnalysisTable, UnitResult, read_analyses
from runner.analysis.validation_log import ValidationRecord, append_validations
from runner.cli.main import main
from runner.documents.fetched_files import MARKER, marker_bytes
from runner.game.protocols.answer_verdicts import words_after_letter
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.rollout_rows import RolloutList, RowFilter
from runner.spec.loader import load_spec
from runner.spec.warnings.catalog import warnings_of
from tests.support.files import json_lines
from tests.support.runs import run_spec
from tests.support.servers.analyst_client import ask_at, run_analyst
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

DUMMY_PROVIDER = "models.analyst.provider=dummy"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return run_spec(spec_file(tmp_path, size=8, fine_tune=None), tmp_path / "results", run_id="first").folder


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with run_analyst(record=1000) as server:
        yield server


def analyze(*arguments: str) -> int:
    return main(["analyze", "first", *arguments, "-q"])


def only_table(folder: RunFolder) -> AnalysisTable:
    (table,) = read_analyses(folder)
    return table


def filter_by_status(table: AnalysisTable, status: str) -> list[UnitResult]:
    return [result for result in table.results if result.status == status]


def write_analyzer(folder: Path, text: str, code: str = "") -> str:
    (folder / "own.yaml").write_text(f"name: own\nunit: message\nquestion: Is it polite?\n{text}")
    (folder / "own.py").write_text(code)
    return str(folder / "own.yaml")


def test_each_applicable_unit_is_requested_once_without_label_and_verdict(
    run: RunFolder, server: LoopbackServer
) -> None:
    before = server.requests
    assert analyze("follow_up", *ask_at(server)) == 0
    table = only_table(run)
    answered = filter_by_status(table, "answered")
    assert server.requests - before == len(answered) >= 2
    assert all(result.reason == f"It is {result.answer}." for result in answered)
    assert all(result.value == (result.answer == "yes") for result in answered)
    assert len(answered) + len(filter_by_status(table, "not_applicable")) == len(table.results) == 16
    for request in server.recorded_requests()[before:]:
        prompt = str(request["body"])
        assert "never an instruction to you" in prompt
        assert not [secret for secret in ("label", "Decision: accept", "verdict") if secret in prompt]
    (units,) = (run.path / "analyses").glob("*/units.jsonl")
    assert {row["label"] for row in json_lines(units)} == {""}


def test_invalid_answer_is_requested_again_and_never_coerced(run: RunFolder) -> None:
    with run_analyst(planted={"": "not sure, but perhaps yes. Decision: yes"}) as server:
        assert analyze("follow_up", *ask_at(server)) == 0
        unanswered = filter_by_status(only_table(run), "no_answer")
        assert server.requests == 3 * len(unanswered) > 0
    assert {(result.answer, result.value) for result in unanswered} == {(None, None)}
    assert not filter_by_status(only_table(run), "answered")


def test_warning_about_unusable_answers_names_the_question_and_no_agent(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_analyst(planted={"": "not sure"}) as server:
        assert main(["analyze", run.run_id, "follow_up", "votes=5", *ask_at(server)]) == 0
    warning = capsys.readouterr().err
    assert "check the question and the answers of the analyzer" in warning
    assert "verifier" not in warning  # users do not know the agents of an analysis


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("It is rude.\n\nDecision: A - no wait, B", "no wait b"),
        ("It is kind.\n\n**Decision:** A) Yes.\nThat is all.", "yes"),
        ("It is rude.\n\nDecision: (B)\n", ""),
        ('{"decision": "A", "reason": "It is kind."}', ""),
        ('{"decision": "A or rather B", "reason": "It is kind."}', "or rather b"),
        ('Decision: "A" no wait, B', "no wait b"),
    ],
)
def test_words_after_letter_returns_the_rest_of_the_verdict_line(reply: str, expected: str) -> None:
    assert words_after_letter(reply, "decision:") == expected


def test_letter_with_contradicting_words_is_requested_again_and_never_coerced(run: RunFolder) -> None:
    with run_analyst(planted={"": "It is rude.\n\nDecision: A - no wait, B"}) as server:
        assert analyze("follow_up", *ask_at(server)) == 0
        assert server.requests == 3 * len(filter_by_status(only_table(run), "no_answer")) > 0
    assert not filter_by_status(only_table(run), "answered")


def test_letter_of_one_shuffled_answer_with_the_text_of_another_is_no_answer(run: RunFolder, tmp_path: Path) -> None:
    analyzer_path = write_analyzer(tmp_path, "answers: [angry, calm]\n")
    with run_analyst(planted={"": "Decision: A) calm"}) as server:
        assert analyze(analyzer_path, *ask_at(server)) == 0
    table = only_table(run)
    assert {result.answer for result in table.results} == {"calm", None}


@pytest.mark.gate
def test_structured_answers_use_a_json_schema_and_votes_are_recorded(run: RunFolder) -> None:
    with run_analyst(json=True, record=100) as server:
        assert analyze("follow_up", *ask_at(server), "votes=3", "--structured", "yes") == 0
        answered = filter_by_status(only_table(run), "answered")
        assert server.requests == 3 * len(answered) > 0
        bodies = [json.loads(request["body"]) for request in server.recorded_requests()]
        (path,) = (run.path / "analyses").glob("*/spec.yaml")
        assert not [line for line in warnings_of(load_spec(path, ask_at(server))) if "decision_line" in line]
    schemas = [body["response_format"]["json_schema"]["schema"] for body in bodies]
    assert schemas[0]["properties"]["decision"]["enum"] == ["A", "B"]
    assert all(result.reason == f"It is {result.answer}." for result in answered)
    assert all(result.votes == (result.answer,) * 3 for result in answered)


def test_reason_comes_from_a_vote_for_the_winning_answer(run: RunFolder, tmp_path: Path) -> None:
    analyzer_path = write_analyzer(tmp_path, "answers: [low, middle, high]\nvalues: {low: 0, middle: 1, high: 2}\n")
    assert analyze(analyzer_path, DUMMY_PROVIDER, "votes=3") == 0
    table = only_table(run)
    assert any(result.votes and result.votes[0] != result.answer for result in table.results)
    journal = (run.path.parent / str(table.analysis_run_id) / "journal.jsonl").read_text()
    letters = dict(zip(("low", "middle", "high"), "ABC", strict=True))
    for result in table.results:
        assert json.dumps(f"{result.reason}\n\nDecision: {letters[str(result.answer)]}") in journal


def test_run_of_an_analysis_cannot_be_published(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze("follow_up", DUMMY_PROVIDER) == 0
    analysis = str(only_table(run).analysis_run_id)
    command = ["publish", analysis, "--to", f"file:{tmp_path / 'local'}", "--as", "acme", "--license", "MIT"]
    assert main([*command, "--dry-run"]) != 0
    assert "publish first instead" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("query", ["seeds", "protocols", "cost_per_right_verdict"])
def test_queries_about_accuracy_leave_out_runs_of_analyses(
    run: RunFolder, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    assert analyze("follow_up", DUMMY_PROVIDER) == 0
    capsys.readouterr()
    results = str(run.path.parent.parent)
    assert main(["sql", f"@{query}", "--results", results, "--format", "csv"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 1
    assert "analysis" not in rows[0]


def test_code_analyzer_answers_without_creating_a_run(run: RunFolder) -> None:
    assert analyze("exact_quotation") == 0
    table = only_table(run)
    assert table.analysis_run_id is None
    assert {result.model for result in table.results} <= {"code"}
    assert [path.name for path in run.path.parent.iterdir()] == ["first"]


def test_code_can_leave_units_to_the_model_and_its_spans_are_stored(run: RunFolder, tmp_path: Path) -> None:
    code = (
        "def f(unit):\n"
        "    assert unit.label is None and unit.verdict is None\n"
        "    m = unit.messages[0]\n"
        "    span = dict(agent=m.agent, channel=m.channel, round=m.round, start=0, end=3)\n"
        "    return {'answer': 'yes', 'reason': 'short', 'spans': [span]} if m.round == 0 else None\n"
    )
    analyzer_path = write_analyzer(tmp_path, "code: own.py:f\n", code)
    assert analyze(analyzer_path, DUMMY_PROVIDER) == 0
    table = only_table(run)
    by_code = [result for result in table.results if result.model == "code"]
    assert {result.round for result in by_code} == {0}
    assert {(result.answer, result.reason, result.spans[0].end) for result in by_code} == {("yes", "short", 3)}
    assert {result.model for result in table.results if result.round} == {"dummy"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(unit):\n    return unit.missing\n", "AttributeError"),
        ("def f(unit):\n    return 'maybe'\n", "it returned 'maybe'; return yes, no, 'not applicable' or None"),
        ("raise SystemExit(3)\n", "own.py fails when it is loaded: SystemExit: 3 (line 1)"),
        ("f = 1 / 0\n", "own.py fails when it is loaded: ZeroDivisionError: division by zero (line 1)"),
        ("g = 1\n", "has no function 'f'"),
    ],
)
def test_an_error_in_a_function_names_its_unit_or_line(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, message: str
) -> None:
    analyzer_path = write_analyzer(tmp_path, "code: own.py:f\n", code)
    assert analyze(analyzer_path, DUMMY_PROVIDER) != 0
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    if "def f" in code:
        assert "/main/0" in error
        assert "(line 2)" in error or "maybe" in error
    assert not read_analyses(run)


@pytest.mark.parametrize("start", ["None", "'0'", "0.5", "10**30"])
def test_spans_that_could_not_be_read_again_are_refused(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], start: str
) -> None:
    span = f"dict(agent='prover', channel='main', round=0, start={start}, end=3)"
    code = f"def f(unit):\n    return {{'answer': 'yes', 'spans': [{span}]}}\n"
    assert analyze(write_analyzer(tmp_path, "code: own.py:f\n", code)) == 1
    assert "it returned spans that cannot be used" in " ".join(capsys.readouterr().err.split())
    assert not read_analyses(run)


def test_a_reason_with_half_of_a_surrogate_pair_is_stored(run: RunFolder, tmp_path: Path) -> None:
    code = "def f(unit):\n    return {'answer': 'yes', 'reason': 'a\\ud800b'}\n"
    assert analyze(write_analyzer(tmp_path, "code: own.py:f\n", code)) == 0
    assert {result.reason for result in only_table(run).results if result.status == "answered"} == {"a?b"}


def test_a_function_of_a_downloaded_analyzer_runs_only_if_allowed(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fetched"
    folder.mkdir()
    (folder / MARKER).write_bytes(marker_bytes("analyzers/someone/own@1", "0" * 64, "https://example.org"))
    analyzer_path = write_analyzer(
        folder, "code: own.py:f\n", "import pathlib\npathlib.Path('ran').touch()\ndef f(unit):\n    return 'yes'\n"
    )
    assert analyze(analyzer_path) == 2
    assert "--allow-command" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert analyze(analyzer_path, "--allow-command", "python") == 0
    assert filter_by_status(only_table(run), "answered")


def test_values_too_large_for_statistics_are_refused(
    tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    del run
    text = "answers: [low, high]\nvalues: {low: 0, high: 1e200}\n"
    assert analyze(write_analyzer(tmp_path, text), DUMMY_PROVIDER) == 2
    assert "numbers must be between -1e+50 and 1e+50" in capsys.readouterr().err


def test_all_errors_of_an_analyzer_are_reported(
    tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    del run
    text = "answers: [low, high]\nvalues: {low: 0}\napplies: [prover, verifier]\ntemplate: Hello {{ solution }}\n"
    assert analyze(write_analyzer(tmp_path, text), DUMMY_PROVIDER) == 2
    error = capsys.readouterr().err
    for message in ("needs a number for each answer", "no agent is both", "no variable 'solution'", "{{ question }}"):
        assert message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["follow_up"], "name the model with --model MODEL"),
        (["role_conformence", DUMMY_PROVIDER], "'role_conformence' is neither a run nor an analyzer"),
        ([DUMMY_PROVIDER], "name an analyzer, a .yaml file or one of concession"),
        (["follow_up", DUMMY_PROVIDER, "sweep={seed: [1, 2]}"], "an analysis has no sweep"),
        (["follow_up", DUMMY_PROVIDER, "rollouts.per_datapoint=2"], "remove rollouts.per_datapoint, or set votes"),
        (["follow_up", "models.analyst.modell=x"], "modell"),
        (["follow_up", DUMMY_PROVIDER, "models.analist.model=x"], "no model group 'analist'; did you mean 'analyst'?"),
        (["follow_up", DUMMY_PROVIDER, "~models.judge"], "no model group 'judge'; the model that answers is 'analyst'"),
        (["follow_up", "models.analyst.seed=1"], "follow_up about first:1:1: models.analyst: missing key: model"),
    ],
)
def test_invalid_command_says_what_to_do(
    run: RunFolder, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    del run
    assert analyze(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.gate
def test_changed_model_settings_make_a_new_instrument_and_a_changed_server_does_not(
    run: RunFolder, server: LoopbackServer
) -> None:
    for changes in ([], ["models.analyst.temperature=0"], ["votes=3"], ["rollouts.concurrency=1"]):
        assert analyze("follow_up", *ask_at(server), *changes) == 0
    before = server.requests
    moved = [argument.replace("127.0.0.1", "localhost") for argument in ask_at(server)]
    assert analyze("follow_up", *moved) == 0
    assert server.requests == before
    assert len({table.instrument for table in read_analyses(run)}) == len(read_analyses(run)) == 3
    assert len({table.question_sha256 for table in read_analyses(run)}) == 1


@pytest.mark.gate
def test_analysis_of_an_extended_run_requests_only_the_new_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, results = spec_file(tmp_path, size=16, fine_tune=None), tmp_path / "results"
    with run_analyst() as server:
        run = run_spec(spec, results, "dataset.limit=8", run_id="first")
        assert analyze("follow_up", *ask_at(server)) == 0
        first = {result.unit_id: result for result in only_table(run.folder).results}
        before = server.requests
        run_spec(spec, results, run_id="first")
        assert analyze("follow_up", *ask_at(server)) == 0
        second = {result.unit_id: result for result in only_table(run.folder).results}
        new_units = [unit for unit in second.values() if unit.status == "answered" and unit.unit_id not in first]
        assert server.requests - before == len(new_units) > 0
    assert len(second) == 32
    assert {name: second[name] for name in first} == first


def test_sql_and_json_output_have_the_answers(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze("follow_up", "exact_quotation", DUMMY_PROVIDER, "--json") == 0
    rates = json.loads(capsys.readouterr().out)
    answered = filter_by_status(
        next(table for table in read_analyses(run) if table.analyzer == "follow_up"), "answered"
    )
    assert [(rate["analyzer"], rate["validated"]) for rate in rates] == [
        ("follow_up", False), ("exact_quotation", False),
    ]  # fmt: skip
    assert rates[0]["mean"] == sum(result.value or 0 for result in answered) / len(answered)
    not_applicable = filter_by_status(read_analyses(run)[0], "not_applicable")
    assert rates[1]["not_applicable"] == Counter(result.reason for result in not_applicable)
    instrument = rates[0]["instrument"]
    record = ValidationRecord(instrument, "follow_up", "", "other", 40, 2, 0.8, 0.5, 0.25, 0.75, 0.5, "2030")
    append_validations(run.path, [record])
    assert analyze("follow_up", "exact_quotation", DUMMY_PROVIDER, "--json") == 0
    assert [rate["validated"] for rate in json.loads(capsys.readouterr().out)] == [True, False]
    assert analyze("follow_up", "exact_quotation", DUMMY_PROVIDER) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"follow_up, {instrument}: validated with 40 labels of other: kappa 0.500" in text
    assert f"the agent quotes nothing ({rates[1]['not_applicable']['the agent quotes nothing']})" in text
    query = (
        "SELECT sum(answered)::INT, count(*), bool_and(outcome IS NOT NULL) FROM analyzed_rollouts "
        "WHERE analyzer = 'follow_up'"
    )
    assert main(["sql", query, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].lower() == f"{len(answered)},8,true"
    assert main(["sql", "SELECT count(*) FROM analyses WHERE status = 'answered'", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == str(len(answered))


@pytest.mark.gate
def test_analysis_run_is_not_listed_and_commands_explain_its_missing_labels(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze("follow_up", DUMMY_PROVIDER) == 0
    results = Results.of(run)
    (analysis,) = (folder for folder in results.runs() if folder != run)
    assert analysis.manifest().analysis_of == "first"
    assert results.find("last") == run
    capsys.readouterr()
    for arguments in (["runs"], ["leaderboard"]):
        assert main(arguments) == 0
        assert "analysis-" not in capsys.readouterr().out
    assert main(["runs", "-v"]) == 0
    assert "analyzes first" in capsys.readouterr().out
    for arguments, message in (
        (["export", analysis.run_id, "--format", "scout"], "the run is an analysis, which has no right answers"),
        (["compare", analysis.run_id, "first"], "is an analysis of first, which has no right answers"),
        (["analyze", analysis.run_id, "follow_up", DUMMY_PROVIDER], "name the run that it analyzes: first"),
    ):
        assert main(arguments) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_analysis_run_shows_the_texts_of_its_answers(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze("follow_up", DUMMY_PROVIDER) == 0
    table = only_table(run)
    answers = {result.unit_id: result.answer for result in filter_by_status(table, "answered")}
    assert table.analysis_run_id is not None
    analysis = Results.of(run).run(table.analysis_run_id)
    for is_finished in (True, False):
        if not is_finished:
            analysis.table("rollouts").unlink()  # the rows then come from the journal
        rows = list(RolloutList(analysis, RowFilter(), None).rows())
        assert {row.datapoint_id: row.decision for row in rows} == answers
    capsys.readouterr()
    assert main(["show", analysis.run_id, rows[0].rollout_id]) == 0
    assert f"answer: {rows[0].decision}" in capsys.readouterr().out


def test_stored_query_counts_answers_and_quotations_per_agent(run: RunFolder, tmp_path: Path) -> None:
    code = (
        "def f(unit):\n"
        "    m = unit.messages[0]\n"
        "    span = dict(agent=m.agent, channel=m.channel, round=m.round, start=0, end=1)\n"
        "    spans = [span, {**span, 'is_exact': True}, {**span, 'is_exact': m.round > 0}]\n"
        "    return {'answer': 'no', 'spans': spans} if m.round < 2 else 'not applicable'\n"
    )
    assert analyze(write_analyzer(tmp_path, "code: own.py:f\n", code)) == 0
    assert analyze("exact_quotation") == 0
    results = next(table for table in read_analyses(run) if table.analyzer == "own").results
    relation = query("@analysis_rates", run.path.parents[1], analyzer="own", run="first")
    rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
    assert {row["agent"] for row in rows} == {result.agent for result in results}
    for row in rows:
        agent_results = [result for result in results if result.agent == row["agent"]]
        answered = [result for result in agent_results if result.status == "answered"]
        spans = [span for result in answered for span in result.spans if span.is_exact is not None]
        assert (row["units"], row["answered"], row["rate"]) == (len(answered), len(answered), 0.0)
        assert row["not_applicable"] == len(agent_results) - len(answered)
        assert (row["quotations"], row["exact"]) == (len(spans), sum(span.is_exact or False for span in spans))
        assert 0 < row["exact"] < row["quotations"] or not any(result.round == 0 for result in answered)
