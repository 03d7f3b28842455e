"""Mistakes of new users, as a table: the error message, its location, and the suggested next step.

Each row is a file for `check`, which exits with code 2 and prints one problem with its location, the source line with
a caret below the column, and a next step. `--json` prints the same as an object.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main

SPEC = """\
name: mine
dataset: {path: data.csv}
protocol:
  use: nip
  max_message_rounds: 4
prompts: prompts
models:
  strong: {provider: dummy}
  weak: {provider: dummy}
agents:
  prover: {model: strong}
  verifier: {model: weak}
"""

DATA = "id,label,question,solution\na,1,Is 2 even?,yes\nb,0,Is 3 even?,yes\n"

PROMPTS = {
    "prover": "Argue: {{ question }}\n",
    "verifier": "Judge: {{ question }}\n{{ solution }}\n",
    "verifier.last_round": "Decide.\n",
}

TRAINING = """\
kind: training
training:
  method: expert_iteration
  test: {scheme: none}
  trainers:
    strong: {backend: dummy}
    weak: {backend: dummy}
"""


@dataclass(frozen=True)
class Mistake:
    """A change to the valid files, and the error that it must cause."""

    change: tuple[str, str] | str | None
    """The text to replace in the spec and its replacement, or lines to append."""
    place: str
    """FILE:LINE:COLUMN, or the start of the location of an override."""
    message: str
    next_step: str
    """A part of the next step."""
    arguments: Sequence[str] = ()
    """Arguments after the file."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    spec: str = "spec.yaml"
    quotes: bool = True
    """True if the source line is printed below the message."""
    problems: int = 1


MISTAKES: dict[str, Mistake] = {
    # YAML
    "a tab": Mistake(("  use: nip", "\tuse: nip"), "spec.yaml:4:1", "a tab in the indentation", "spaces"),
    "an indentation that fits nothing": Mistake(
        ("  max_message", " max_message"), "spec.yaml:5:2", "the indentation (1) matches no line above",
        "line 4 has 2"),
    "a key below the wrong one": Mistake(
        ("prompts: prompts", "  seed: 3\nprompts: prompts"), "spec.yaml:6:3", "unknown key",
        "known are max_message_rounds"),
    "a value above deeper lines": Mistake(
        ("name: mine", "name: mine\n  seed: 3"), "spec.yaml:2:3", "indented deeper (2) than line 1 (0)",
        "the same indentation"),
    "a colon in a value": Mistake(
        ("name: mine", "name: mine\ndescription: a first try: nip"), "spec.yaml:2:25", "a second colon",
        'description: "a first try: nip"'),
    "no space after a colon": Mistake(
        ("prompts: prompts", "prompts:prompts"), "spec.yaml:6:1", "no ': ' after the key",
        "put a space after the colon"),
    "a quote that is not closed": Mistake(
        ("name: mine", 'name: "mine'), "spec.yaml:1:7", "the quote that opens here is not closed", 'add "'),
    "a quote that another one closes": Mistake(
        ("name: mine", 'name: "mine\nbenchmark: "b"'), "spec.yaml:1:7", "is closed only in line 2", 'add "'),
    "an apostrophe in single quotes": Mistake(
        ("name: mine", "name: mine\ndescription: 'it's me'"), "spec.yaml:2:18", "text after the closing quote", "''"),
    "a bracket that is not closed": Mistake(
        ("name: mine", "name: mine\nsweep: {seed: [0, 1}"), "spec.yaml:2:20", "} cannot close the [ of line 2",
        "write ]"),
    "a brace that is not closed": Mistake(
        ("{model: strong}", "{model: strong"), "spec.yaml:11:11", "the { that opens here is not closed", "add }"),
    "a list in the line of its key": Mistake(
        ("name: mine", "name: mine\nextends: - a"), "spec.yaml:2:10", "a list item in the line of its key", "[A, B]"),
    "a backslash in double quotes": Mistake(
        ("path: data.csv", 'path: "C:\\data.csv"'), "spec.yaml:2:20", "an unknown escape", "\\\\"),
    "a text that begins with @": Mistake(
        ("name: mine", "name: mine\ndescription: @home"), "spec.yaml:2:14", "cannot begin with '@'",
        "put it in quotes"),
    "a key given twice": Mistake(
        "seed: 1\nname: other\n", "spec.yaml:14:1", "a duplicate key, which is already set in line 1",
        "remove one of the two"),
    "a key that YAML reads as a boolean": Mistake(
        ("  strong: {provider: dummy}", "  on: {provider: dummy}"), "spec.yaml:8:3", "YAML reads this one as bool",
        "quotes"),
    "a Jinja variable in a spec": Mistake(
        ("name: mine", "name: {{ name }}"), "spec.yaml:1:8", "a key must be text", "quotes"),
    "an alias": Mistake(
        ("name: mine", "name: &n mine"), "spec.yaml:1:7", "anchors (&n) are not allowed", "${...}"),
    "no mapping at all": Mistake(None, "spec.yaml:1:1", "this is a list", "schema", files={"spec.yaml": "- name: x\n"}),
    "an empty file": Mistake(
        None, "spec.yaml:1:1", "the file is empty", "schema", files={"spec.yaml": ""}, quotes=False),
    # Files of other kinds
    "a Latin-1 file": Mistake(
        None, "spec.yaml:2:14", "not UTF-8 (byte 0xe9)", "save the file as UTF-8",
        files={"spec.yaml": "name: x\ndescription: \xe9t\xe9\n".encode("latin-1")}),
    "a UTF-16 file": Mistake(
        None, "spec.yaml:1:1", "the file is UTF-16", "save it as UTF-8", files={"spec.yaml": SPEC.encode("utf-16")},
        quotes=False),
    "a binary file": Mistake(
        None, "spec.yaml:1:1", "the file is binary", "name a YAML file",
        files={"spec.yaml": b"\x7fELF\x02\x00\x00\x00" * 9}, quotes=False),
    "a protocol for a spec": Mistake(
        None, "own.yaml:1:1", "a protocol file, not a spec", "protocol: {use: own.yaml}", spec="own.yaml", quotes=False,
        files={"own.yaml": "name: own\nextends: debate\nparameters: {max_message_rounds: 3}\n"}),
    "a dataset for a spec": Mistake(
        None, "data.csv:1:1", "a dataset, not a spec", "dataset: {path: data.csv}", spec="data.csv", quotes=False),
    "a template for a spec": Mistake(
        None, "prompts/prover.jinja:1:1", "a prompt template, not a spec", "prompts: prompts",
        spec="prompts/prover.jinja", quotes=False),
    "a folder of prompts for a spec": Mistake(
        None, "prompts:1:1", "a folder of prompt templates", "prompts: prompts", spec="prompts", quotes=False),
    "a folder for a spec": Mistake(
        None, "more:1:1", "a folder, not a spec", "give a file of it: one.yaml", spec="more", quotes=False,
        files={"more/one.yaml": SPEC}),
    "a misspelled file": Mistake(
        None, "spce.yaml:1:1", "no such spec file", "'spec.yaml'", spec="spce.yaml", quotes=False),
    # Keys and values
    "a misspelled key": Mistake("rolouts: {concurrency: 3}\n", "spec.yaml:13:1", "unknown key", "'rollouts'"),
    "a key that is missing": Mistake(
        ("name: mine\n", ""), "spec.yaml:1:1", "missing key: name", "add name: ", quotes=False),
    "a text for a number": Mistake(
        "seed: five\n", "spec.yaml:13:1", "expected a whole number, not 'five'", "seed: 0"),
    "a number for a text": Mistake(("name: mine", "name: 3"), "spec.yaml:1:1", "expected text, not 3", "in quotes"),
    "a value for a mapping": Mistake(
        ("{model: strong}", "strong"), "spec.yaml:11:3", "expected a mapping (KEY: VALUE lines)",
        "its keys are model"),
    "a negative number": Mistake(
        "rollouts: {per_datapoint: -1}\n", "spec.yaml:13:12", "-1 is too small", "at least 1"),
    "a share above one": Mistake(
        "fine_tune: {validation_share: 1.5}\n", "spec.yaml:13:13", "1.5 is too large", "less than 1"),
    "a command as text": Mistake(
        TRAINING.replace("weak: {backend: dummy}", "weak: {backend: command, command: 'python t.py {dataset}'}"),
        "spec.yaml:19:30", "expected a list", "write ['python', 't.py', '{dataset}']"),
    "a budget as text": Mistake(
        "budget: {usd: 5 dollars}\n", "spec.yaml:13:10", "expected a number, not '5 dollars'", "usd: "),
    "an unknown kind": Mistake(
        "kind: benchmrk\n", "spec.yaml:13:1", "'benchmrk' is not one of benchmark, training", "'benchmark'"),
    "a misspelled fine-tune format": Mistake(
        "fine_tune: {formats: [opnai]}\n", "spec.yaml:13:23", "'opnai' is not one of openai, trl, verl", "'openai'"),
    "a misspelled chat format": Mistake(
        ("strong: {provider: dummy}", "strong: {provider: dummy, chat_format: alternatng}"), "spec.yaml:8:29",
        "'alternatng' is not one of", "'alternating'"),
    "a wrong provider": Mistake(
        ("strong: {provider: dummy}", "strong: {provider: opnai}"), "spec.yaml:8:12", "'opnai' is not one of",
        "'openai'"),
    "a name that no folder can have": Mistake(
        ("name: mine", "name: my run"), "spec.yaml:1:1", "'my run' does not have the form: letters, digits, '.', '_'",
        "for example name: "),
    "an address without a scheme": Mistake(
        ("strong: {provider: dummy}", "strong: {model: x, base_url: localhost:8000}"), "spec.yaml:8:22",
        "'localhost:8000' does not have the form", "http://"),
    "a key instead of its variable name": Mistake(
        ("strong: {provider: dummy}", "strong: {model: x, api_key_env: my-key}"), "spec.yaml:8:22",
        "a spec must not contain a key", "for example api_key_env: "),
    "null that removes nothing": Mistake(
        ("prover: {model: strong}", "prover: {model: strong}\n  provers: null"), "spec.yaml:12:3",
        "this file has no `extends`",
        "leave the line out"),
    # Names that must be there
    "an unknown protocol": Mistake(
        ("use: nip", "use: debat"), "spec.yaml:4:3", "no built-in protocol or file 'debat'", "'debate'"),
    "a wrong protocol parameter": Mistake(
        ("max_message_rounds: 4", "max_mesage_rounds: 4"), "spec.yaml:5:3", "unknown key", "'max_message_rounds'"),
    "a parameter that the protocol fixes": Mistake(
        ("max_message_rounds: 4", "sequential: true"), "spec.yaml:5:3", "nip fixes sequential",
        "remove protocol.sequential"),
    "an unknown agent": Mistake(
        ("verifier: {model: weak}", "verifier: {model: weak}\n  judge: {model: weak}"), "spec.yaml:13:3",
        "nip has no such agent", "its agents are prover, verifier"),
    "an unknown model group": Mistake(
        ("{model: strong}", "{model: stron}"), "spec.yaml:11:12", "no model group 'stron'", "'strong'"),
    "an agent that is missing": Mistake(
        ("  prover: {model: strong}\n", ""), "spec.yaml:10:1", "missing agents of nip: prover",
        "add agents.prover"),
    "a server without a model": Mistake(
        ("strong: {provider: dummy}", 'strong: {base_url: "http://127.0.0.1:1/v1"}'), "spec.yaml:8:3",
        "missing key: model", "add models.strong.model"),
    "a budget without a price": Mistake(
        ("models:\n  strong: {provider: dummy}", "budget: {usd: 1}\nmodels:\n  strong: {model: mine, max_tokens: 9}"),
        "spec.yaml:9:3",
        "unknown price for model 'mine'", "set models.strong.price"),
    "a default with an unknown model group": Mistake(
        ("prover: {model: strong}", "_default: {model: stron}"), "spec.yaml:11:14", "no model group 'stron'",
        "'strong'"),
    "a missing dataset": Mistake(
        ("data.csv", "dota.csv"), "spec.yaml:2:11", "there is no file 'dota.csv'", "'data.csv'"),
    "a missing folder of prompts": Mistake(
        ("prompts: prompts", "prompts: promts"), "spec.yaml:6:1", "no folder 'promts'", "'prompts'"),
    "a missing template": Mistake(
        ("prompts: prompts", "prompts: other"), "spec.yaml:6:1", "no template 'other/prover.jinja'", "'provr.jinja'",
        files={"other/provr.jinja": "x", "other/verifier.jinja": "x", "other/verifier.last_round.jinja": "x"}),
    "prompts of another protocol": Mistake(
        ("prompts: prompts", "prompts: debate"), "spec.yaml:6:1", "no template 'debate/prover.jinja'",
        "set prompts to a folder with templates for nip, such as 'nip'",
        files={"debate/verifier.jinja": "x", "debate/verifier.last_round.jinja": "x", "nip/prover.jinja": "x"}),
    "an unknown variable": Mistake(
        None, "prompts/prover.jinja:2:4", "no such variable", "'question'",
        files={"prompts/prover.jinja": "Say:\n{{ qestion }}\n"}),
    "a template that cannot be parsed": Mistake(
        None, "prompts/prover.jinja:1:1", "template syntax", "end each",
        files={"prompts/prover.jinja": "{% if question %}\n"}),
    "the label in a template": Mistake(
        None, "prompts/prover.jinja:1:4", "the label must not reach a prompt", "remove the variable",
        files={"prompts/prover.jinja": "{{ label }}"}),
    # Data
    "unknown label words": Mistake(
        None, "spec.yaml:2:11", "maybe", "", files={"data.csv": DATA.replace("a,1", "a,maybe")}),
    "a wrong value in the labels": Mistake(
        ("path: data.csv", "path: data.csv, labels: {maybe: CHANGE}"), "spec.yaml:2:36", "'CHANGE' is not one of 0, 1",
        "write one of them", files={"data.csv": DATA.replace("a,1", "a,maybe")}),
    "duplicate ids": Mistake(
        None, "spec.yaml:2:11", "duplicate ids: a", "ids must be unique", files={"data.csv": DATA.replace("b,0",
        "a,0")}),
    "no column of labels": Mistake(
        None, "spec.yaml:2:11", "no column 'label'", "dataset.columns.label=", files={"data.csv": DATA.replace("label",
        "lab")}),
    "a misspelled key of the checker": Mistake(
        ("path: data.csv", "path: data.csv, checker: {by: exact, colum: solution}"), "spec.yaml:2:48", "unknown key",
        "'column'", files={"data.csv": DATA.replace("label", "lab")}),
    "a missing column": Mistake(
        ("path: data.csv", "path: data.csv, columns: {solution: answr}"), "spec.yaml:2:37", "no column 'answr'",
        "choose one of id, label, question, solution"),
    "a missing split": Mistake(
        ("path: data.csv", "path: data.csv, split: test"), "spec.yaml:2:27", "no column 'split'",
        "remove the split"),
    # Sweeps, bases and interpolations
    "a sweep over a single value": Mistake(
        "sweep: {seed: 3}\n", "spec.yaml:13:9", "expected a list, not 3", "[3]"),
    "a sweep over an unknown key": Mistake("sweep: {sed: [1]}\n", "spec.yaml:13:15", "unknown key", "'seed'"),
    "zipped lists of two lengths": Mistake(
        "sweep: {zip: {seed: [1, 2], description: [a]}}\n", "spec.yaml:13:29", "1 value, but another list",
        "make them equally long"),
    "a missing base": Mistake(
        "extends: bse.yaml\n", "spec.yaml:13:1", "no file 'bse.yaml'", "'base.yaml'", files={"base.yaml": "seed: 1\n"}),
    "files that extend each other": Mistake(
        "extends: base.yaml\n", "base.yaml:1:1", "'spec.yaml' extends itself", "remove one of the",
        files={"base.yaml": "extends: spec.yaml\n"}),
    "an interpolation of a missing key": Mistake(
        "description: by ${nme}\n", "spec.yaml:13:1", "no such key", "'name'"),
    "circular interpolations": Mistake(
        "description: ${benchmark}\nbenchmark: ${description}\n", "spec.yaml:13:1", "refers to itself",
        "by a value", problems=2),
    "an environment variable in a spec": Mistake(
        "description: ${oc.env:HOME}\n", "spec.yaml:13:1", "only ${key} is allowed", "write the value out"),
    # Training
    "no trainer for a group": Mistake(
        TRAINING.replace("    weak: {backend: dummy}\n", ""), "spec.yaml:17:3", "no trainer for model group 'weak'",
        "add"),
    "a trainer for an unknown group": Mistake(
        TRAINING + "    wek: {backend: dummy}\n", "spec.yaml:20:5", "", "'weak'"),
    # The command line
    "an override of an unknown key": Mistake(None, "override 'sed=3'", "unknown key", "'seed'", arguments=["sed=3"]),
    "the only value of a key": Mistake(None, "override 'stances=swap'", "must be both", "", arguments=["stances=swap"]),
    "a protocol by its name alone": Mistake(
        None, "override 'protocol=debate'", "expected a mapping", "its keys are use, max_message_rounds",
        arguments=["protocol=debate"]),
    "an override of the wrong type": Mistake(
        None, "override 'rollouts.concurrency=many'", "expected a whole number", "concurrency: 64",
        arguments=["rollouts.concurrency=many"]),
    "a missing key to delete": Mistake(
        None, "override '~agents.provr'", "no such key to delete", "'prover'", arguments=["~agents.provr"]),
    "an override into a value": Mistake(
        None, "override 'name.x=1'", "'mine' is not a mapping", "cannot be set", arguments=["name.x=1"]),
    "a colon in an override": Mistake(
        None, "override 'description=a: b'", "a second colon", """'description="..."'""",
        arguments=["description=a: b"]),
}  # fmt: skip

FULL_TIER_ONLY = (
    "a text that begins with @", "a number for a text", "a value for a mapping", "a share above one",
    "an unknown kind",
    "a name that no folder can have", "a key instead of its variable name", "a parameter that the protocol fixes",
    "no column of labels", "a missing column", "a missing split", "a trainer for an unknown group",
    "an override of the wrong type",
)  # fmt: skip
"""Rows that are similar to others and run only with `-m full`."""

USAGE = {
    "spaces around the =": (["seed", "=", "3"], "spaces around the = of an override", "write seed=3"),
    "a space after the =": (["seed=", "3"], "spaces around the = of an override", "write seed=3"),
    "an override with dashes": (["--rollouts.concurrency=3"], "unrecognized arguments", "rollouts.concurrency=3"),
    "a key with dashes": (["--seed", "3"], "unrecognized arguments", "seed=3"),
    "a misspelled option": (["--resutls", "x"], "unrecognized arguments", "'--results'"),
}
"""Invalid command lines: the arguments after the spec, the message, and the next step."""


def test_misspelled_option_is_reported_even_without_a_spec(tmp_path: Path) -> None:
    output = run_check(tmp_path, "--hlep")
    assert (output.code, output.errors[0]["message"]) == (2, "unrecognized arguments: --hlep")
    assert output.errors[0]["hint"] == "did you mean '--help'?"


@dataclass(frozen=True)
class CommandOutput:
    code: int
    lines: list[str]
    errors: list[dict[str, Any]]


def check_mistake(folder: Path, mistake: Mistake) -> CommandOutput:
    """Write the files with the mistake and run `check --json` on them."""
    text = SPEC
    if isinstance(mistake.change, tuple):
        assert mistake.change[0] in SPEC
        text = SPEC.replace(*mistake.change, 1)
    elif mistake.change is not None:
        text = SPEC + mistake.change
    templates = {f"prompts/{name}.jinja": source for name, source in PROMPTS.items()}
    for name, content in {"spec.yaml": text, "data.csv": DATA, **templates, **mistake.files}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return run_check(folder, mistake.spec, *mistake.arguments)


def run_check(folder: Path, *arguments: str) -> CommandOutput:
    stdout, stderr = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(stdout), redirect_stderr(stderr):
        code = main(["check", *arguments, "--json"])
    assert "bug in nip-run" not in stderr.getvalue()
    report = json.loads(stdout.getvalue())
    if code == 0:
        return CommandOutput(code, stderr.getvalue().splitlines(), [])
    assert (report["ok"], report["exit_code"]) == (False, code), report
    return CommandOutput(code, stderr.getvalue().splitlines(), report["errors"])


@pytest.mark.sample(44)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if name in FULL_TIER_ONLY else [], id=name.replace(" ", "-"))
        for name in MISTAKES
    ],
)
def test_mistake_is_reported_with_location_source_line_and_next_step(tmp_path: Path, name: str) -> None:
    mistake = MISTAKES[name]
    output = check_mistake(tmp_path, mistake)
    assert (output.code, len(output.errors)) == (2, mistake.problems), output.lines
    error = output.errors[0]
    is_file = not mistake.place.startswith("override")
    place = f"{error['file']}:{error['line']}:{error['column']}" if is_file else error["file"]
    assert place == mistake.place, output.lines
    assert mistake.message in error["message"], output.lines
    assert mistake.next_step in (error["hint"] or "no next step"), output.lines
    line_number = next(i for i, line in enumerate(output.lines) if line.startswith(f"{mistake.place}:"))
    assert error["message"] in output.lines[line_number]
    quoted = output.lines[line_number + 1 : line_number + 3]
    if is_file and mistake.quotes:
        source = (tmp_path / error["file"]).read_text("utf-8", "replace").splitlines()[error["line"] - 1]
        begin = f"  {error['line']} | "
        assert quoted[0] == begin + source.replace("\t", "\\t")
        assert quoted[1].index("^") - len(begin) == error["column"] - 1
    else:
        assert not any(line.endswith("^") for line in quoted)


@pytest.mark.parametrize("name", USAGE)
def test_invalid_command_line_gets_a_hint_with_the_correct_form(tmp_path: Path, name: str) -> None:
    arguments, message, next_step = USAGE[name]
    (tmp_path / "spec.yaml").write_text(SPEC)
    output = run_check(tmp_path, "spec.yaml", *arguments)
    assert output.code == 2
    (error,) = output.errors
    assert message in error["message"]
    assert next_step in error["hint"]
    assert error["file"] is error["line"] is error["column"] is error["key"] is None
    assert next_step in "\n".join(output.lines)


def test_base_files_of_the_mistakes_table_pass_check(tmp_path: Path) -> None:
    assert check_mistake(tmp_path, Mistake(None, "", "", "")).code == 0


def test_a_misspelled_command_is_corrected_even_with_options_of_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["shwo", "last", "--wrong"]) == 2
    assert "nip-run: error: no command or file 'shwo'; did you mean 'show'?" in capsys.readouterr().err
    Path("shwo.yaml").write_text(SPEC)
    assert main(["shwo"]) == 2
    assert (
        "no such spec file, neither here nor among the built-in specs; did you mean 'shwo.yaml'?"
        in capsys.readouterr().err
    )
