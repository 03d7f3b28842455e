"""Warnings about valid specs: one line each, and they do not stop a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.spec.loader import load_spec
from runner.spec.warnings.catalog import check_warnings_of, warnings_of
from tests.compatibility.old import run_command
from tests.support.games import COUNCIL
from tests.support.paths import ROOT
from tests.support.specs import spec_file
from tests.support.terminal import run_in_terminal

SHIPPED = [path for path in sorted((ROOT / "specs").glob("*.yaml")) if path.stem not in {"nip", "debate", "mnip"}]


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_specs_with_current_round_limits_have_no_warnings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    assert check_warnings_of(load_spec(path)) == []


def test_check_warns_about_a_key_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lines = check_warnings_of(load_spec(ROOT / "specs" / "openai.yaml"))
    groups = load_spec(ROOT / "specs" / "openai.yaml").experiment.models
    assert lines == [
        f"models.{group}: OPENAI_API_KEY is not set in this environment; set it before you run the spec"
        for group in groups
    ]
    assert check_warnings_of(load_spec(ROOT / "specs" / "quickstart.yaml")) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["temperature=2.5"], "temperature: 2.5 is out of range: api.openai.com accepts 0 to 2"),
        (["temperature=2"], None),
        (["temperature=2.5", "base_url=https://eu.api.openai.com/v1"], "eu.api.openai.com accepts 0 to 2"),
        (["temperature=2.5", "base_url=https://notapi.openai.com/v1"], None),
        (["temperature=1.2", "base_url=https://api.anthropic.com/v1"], "api.anthropic.com accepts 0 to 1"),
        (["temperature=5", "base_url=http://127.0.0.1:8000/v1"], None),
        (["temperature=5", "provider=dummy"], None),
    ],
)
def test_check_warns_about_a_temperature_that_the_server_does_not_accept(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    changes = [f"models.small.{override}" for override in overrides]
    lines = check_warnings_of(load_spec(ROOT / "specs" / "openai.yaml", changes))
    assert len(lines) == (message is not None)
    assert not lines or str(message) in lines[0]


def check_warnings_for_rows(folder: Path, *overrides: str, rows: list[dict[str, Any]], **settings: Any) -> list[str]:
    """Return the warnings about a spec with these rows, whose templates show `claim`."""
    templates = {
        "prover": COMPLETE_TEMPLATE,
        "verifier": COMPLETE_TEMPLATE + "{{ claim }}",
        "verifier.last_round": "now",
    }
    path = write_spec_with_protocol(folder, "name: own\nextends: nip\n", **templates)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "dataset": {"path": "rows.jsonl", **settings}}))
    return [line for line in check_warnings_of(load_spec(path, overrides)) if "wasted" not in line]


def make_claims(groups: int, **columns: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"{group}-{label}", "label": label, "claim": f"{group} {label}", "topic": group, **columns}
        for group in range(groups)
        for label in (0, 1)
    ]


def test_a_model_over_an_inherited_dummy_is_warned_about(tmp_path: Path) -> None:
    base = spec_file(tmp_path, models={"m": {"provider": "dummy"}})
    path = tmp_path / "mine.yaml"
    warning = "models.m calls no model: it inherits `provider: dummy`, which answers at random"
    for settings in ("model: gpt-6-luna", "base_url: http://127.0.0.1:1/v1", "model: x, max_tokens: 3"):
        path.write_text(f"extends: {base.name}\nmodels: {{m: {{{settings}}}}}\n")
        assert any(line.startswith(warning) for line in warnings_of(load_spec(path)))
        for override in ("models.m.provider=dummy", "models.m={provider: dummy, model: strong}"):
            assert not any("calls no model" in line for line in warnings_of(load_spec(path, [override])))
    path.write_text(f"extends: {base.name}\nmodels: {{m: {{temperature: 1}}}}\n")
    assert not any("calls no model" in line for line in warnings_of(load_spec(path)))
    assert any(line.startswith(warning) for line in warnings_of(load_spec(path, ["models.m.model=gpt-6-luna"])))


def test_run_to_replay_without_the_provider_replay_is_warned_about(tmp_path: Path) -> None:
    path = spec_file(tmp_path, models={"m": {"provider": "dummy", "run": "results/runs/x"}})
    assert (
        "models.m.run has no effect, because its provider is dummy: to replay the run's answers, set "
        "models.m.provider=replay; otherwise remove run" in warnings_of(load_spec(path))
    )


def test_check_warns_about_a_dataset_with_one_label(tmp_path: Path) -> None:
    (line,) = check_warnings_for_rows(tmp_path, rows=[row for row in make_claims(20) if row["label"]])
    assert line.startswith("all 20 datapoints have label 1: a verifier that always accepts is always right")


def test_check_warns_about_fewer_than_ten_groups(tmp_path: Path) -> None:
    assert check_warnings_for_rows(tmp_path, rows=make_claims(10), group_by="topic") == []
    (line,) = check_warnings_for_rows(tmp_path, rows=make_claims(9), group_by="topic")
    assert line.startswith("the dataset has only 9 groups: intervals need at least 10 independent groups")
    (line,) = check_warnings_for_rows(tmp_path, rows=make_claims(4))
    assert line.startswith("the dataset has only 8 datapoints")
    (line,) = check_warnings_for_rows(tmp_path, "dataset.limit=6", rows=make_claims(10))
    assert line.startswith("the dataset has only 6 datapoints")


def test_check_warns_about_columns_that_no_template_shows(tmp_path: Path) -> None:
    long = "What is the capital of a country that is far away?"
    rows = make_claims(10, background=long, source="a book", difficulty="hard")
    (line,) = check_warnings_for_rows(tmp_path, rows=rows)
    assert line.startswith("no template uses background: agents do not see it; write {{ background }} in a template")
    assert check_warnings_for_rows(tmp_path, rows=rows, filter="background <> 'x'") == []
    (line,) = check_warnings_for_rows(tmp_path, rows=make_claims(10, source="a book"), columns={"book": "source"})
    assert line.startswith("no template uses book: ")
    (line,) = check_warnings_for_rows(tmp_path, rows=make_claims(10, **{"Source text": long}))
    assert "set dataset.columns.Source_text to 'Source text' and write {{ Source_text }} in a template" in line


@pytest.mark.parametrize(
    "name", ["nip", pytest.param("debate", marks=pytest.mark.full), pytest.param("mnip", marks=pytest.mark.full)]
)
def test_wasted_last_round_is_reported_with_better_round_limits(name: str) -> None:
    path, better = ROOT / "specs" / f"{name}.yaml", (7, 9)
    (line,) = warnings_of(load_spec(path))
    assert line.startswith("round 7 is paid for and wasted: no decision follows what prover")
    assert line.endswith(f"set protocol.max_message_rounds={better[0]} or {better[1]}")
    assert [warnings_of(load_spec(path, [f"protocol.max_message_rounds={rounds}"])) for rounds in better] == [[], []]


@pytest.mark.full
def test_warning_is_wrapped_to_the_terminal_width(tmp_path: Path) -> None:
    code, output = run_in_terminal("check", str(ROOT / "specs" / "nip.yaml"), cwd=tmp_path, columns=60, NO_COLOR="1")
    assert code == 0
    lines = output.replace("\r", "").split("\n")
    first = next(
        index for index, line in enumerate(lines) if line.startswith("warning: round 7 is paid for and wasted")
    )
    assert len(lines[first]) < 60
    assert lines[first + 1].startswith("  ")
    assert len(lines[first + 1]) < 60


COMPLETE_TEMPLATE = "Write {{ accept }} or {{ reject }}. {% for header in headers %}{{ header }}{% endfor %}"


def write_spec_with_protocol(folder: Path, protocol: str, **templates: str) -> Path:
    """Write a spec with a custom protocol and these templates."""
    (folder / "own.yaml").write_text(protocol)
    (folder / "prompts").mkdir(exist_ok=True)
    for name, text in templates.items():
        (folder / "prompts" / f"{name}.jinja").write_text(text)
    path = spec_file(folder, protocol=None, agents=None, prompts="prompts")
    agents = {name: {"model": "m"} for name in templates if "." not in name}
    spec = {**json.loads(path.read_text()), "protocol": {"use": "own.yaml"}, "agents": agents}
    path.write_text(json.dumps(spec))
    return path


def test_relayed_messages_are_not_reported_as_wasted(tmp_path: Path) -> None:
    templates = dict.fromkeys(("speaker", "second", "third", "verifier"), COMPLETE_TEMPLATE)
    spec = write_spec_with_protocol(tmp_path, COUNCIL, **templates)
    assert warnings_of(load_spec(spec)) == []
    (line,) = warnings_of(load_spec(spec, ["protocol.max_message_rounds=9"]))
    assert line.startswith(
        "rounds 6, 7, 8 are paid for and wasted: no decision follows what second and speaker and third"
    )
    protocol_without_relay = COUNCIL.replace("speaker: [main]}", "third: [back_room]}").replace(
        "sequential: true", "sequential: false"
    )
    (line,) = warnings_of(load_spec(write_spec_with_protocol(tmp_path, protocol_without_relay, **templates)))
    assert line.startswith(
        "rounds 1, 2, 4, 5, 7, 8 and 1 more are paid for and wasted: no decision follows what second and"
    )
    assert "max_message_rounds" not in line, "no number of rounds helps"


DEBATE = "name: own\nextends: debate\nparameters: {max_message_rounds: 3}\n"


@pytest.mark.parametrize(
    ("verifier", "missing"),
    [
        (COMPLETE_TEMPLATE, []),
        ("{{ accept }} {{ reject }} {{ headers[0] }}", []),
        ("Decision: accept / Decision: reject. Question for Expert_1: Question for Expert_2:", []),
        ("{{ accept }} {{ reject }}", ["`headers`"]),
        ("{{ headers[0] }} {{ accept }}", ["`reject`"]),
        ("{{ headers[0] }} decision: accept / {{ reject }}", ["`accept`"]),
        ("Good luck", ["`headers`", "`accept` and `reject`"]),
    ],
)
def test_warning_names_variables_that_the_verifiers_templates_must_use(
    tmp_path: Path, verifier: str, missing: list[str]
) -> None:
    templates = {"prover0": "x", "prover1": "x", "verifier": verifier, "verifier.last_round": "now"}
    lines = warnings_of(load_spec(write_spec_with_protocol(tmp_path, DEBATE, **templates)))
    prefix = "verifier.jinja and verifier.last_round.jinja never use "
    assert [line.partition(", so verifier does not learn ")[0] for line in lines] == [
        prefix + variables for variables in missing
    ]


def test_verifier_with_a_single_turn_needs_no_headers(tmp_path: Path) -> None:
    debate = "name: own\nextends: debate\nparameters: {verifier_first: false, max_message_rounds: 2}\n"
    templates = {"prover0": "x", "prover1": "x", "verifier": "{{ accept }} {{ reject }}", "verifier.last_round": "now"}
    assert warnings_of(load_spec(write_spec_with_protocol(tmp_path, debate, **templates))) == []


@pytest.mark.full
def test_warnings_do_not_stop_a_run_and_are_printed_once(tmp_path: Path) -> None:
    spec_file(tmp_path, size=10, sweep={"seed": [0, 1]})
    completed_check = run_command("check", "spec.yaml", cwd=tmp_path)
    completed_run = run_command("run", "spec.yaml", cwd=tmp_path)
    warning_lines = [line for line in completed_check.err.splitlines() if line.startswith("warning: ")]
    assert (completed_check.code, completed_run.code, len(warning_lines)) == (0, 0, 1)
    assert completed_run.err.count("warning: ") == completed_run.err.count(warning_lines[0]) == 1
    assert "warning" not in run_command("run", "spec.yaml", "-q", cwd=tmp_path).err
    points = run_command("check", "spec.yaml", "--json", cwd=tmp_path).json
    assert [point["warnings"] for point in points] == [[warning_lines[0].removeprefix("warning: ")]] * 2
