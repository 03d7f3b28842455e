"""Templates run in a sandbox, data is not interpreted as a template, and the label never reaches a prompt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.base.errors import NipRunError, RunError, SpecError
from runner.base.problems import Place
from runner.game.prompts.sandbox import scan
from runner.game.prompts.templates import (
    VARIABLES,
    PromptLoader,
    PromptSet,
)
from runner.game.protocols.loader import builtin_names, load_protocol
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment
from tests.support.prompt_variables import COLUMNS, make_prompt_variables

SOLO = load_protocol("solo_verifier")


def load_source(folder: Path, source: str | bytes, columns: dict[str, object] | None = None) -> PromptSet:
    path = folder / "verifier.jinja"
    path.write_bytes(source.encode() if isinstance(source, str) else source)
    return PromptLoader(SOLO, columns or COLUMNS, Place("spec.yaml", 4, 1)).load(folder)


def render_source(folder: Path, source: str, columns: dict[str, object] | None = None) -> str:
    columns = columns or COLUMNS
    return load_source(folder, source, columns).render(
        "verifier", make_prompt_variables(SOLO, "verifier", columns=columns)
    )


def refusal_message(folder: Path, source: str | bytes) -> str:
    with pytest.raises(SpecError) as caught:
        load_source(folder, source)
    return "\n".join(str(p).replace(f"{folder}/", "") for p in caught.value.problems)


# The sandbox


@pytest.mark.parametrize(
    "source",
    [
        # access to Python objects
        "{{ lipsum.__globals__ }}",
        "{{ ('{0.__class__}'|attr('format'))(question) }}",
        "{{ question.__class__ }}",
        "{{ question['__class__'] }}",
        "{{ question|attr('__class__') }}",
        "{{ headers|join(attribute='__class__') }}",
        "{{ question|map('attr', '__class__') }}",
        "{{ ''.join }}",
        "{{ question.upper() }}",
        "{{ question.format(1) }}",
        "{{ self }}",
        "{{ self.x }}",
        "{{ cycler('a') }}",
        "{{ namespace() }}",
        "{{ dict() }}",
        "{{ caller }}",
        "{{ loop }}",
        "{{ _private }}",
        # other files and definitions
        "{% include '/etc/passwd' %}",
        "{% include 'verifier.jinja' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% block b %}{% endblock %}",
        "{% call m() %}{% endcall %}",
        "{% filter upper %}x{% endfilter %}",
        "{% set x = 'a' %}",
        "{% set x %}a{% endset %}",
        "{% with a=1 %}{% endwith %}",
        "{% autoescape true %}{{ question }}{% endautoescape %}",
        "{% do question %}",
        # expensive expressions
        "{{ 'a'*10**9 }}",
        "{{ 7**10**8 }}",
        "{{ '%999999999d'%1 }}",
        "{{ 1/0 }}",
        "{% for a in range(10**5) %}{% for b in range(10**5) %}x{% endfor %}{% endfor %}",
        "{{ lipsum(n=10000) }}",
        "{{ 'x'|indent(10**8) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x'|replace('x', question) }}",
        "{{ question|format(1) }}",
        "{% for x in question %}{% for y in question %}a{% endfor %}{% endfor %}",
        "{% for x in question recursive %}{{ loop(question) }}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{{ 1" + "+1" * 4000 + " }}",
        "x" * (65 << 10),
        # invalid templates
        "{{ question",
        "{% if %}",
        "{% for loop in question %}{{ loop.first }}{% endfor %}",
        b"\xff\xfe",
    ],
    ids=lambda source: str(source)[:60],
)
def test_hostile_template_is_refused_before_rendering(tmp_path: Path, source: str) -> None:
    assert refusal_message(tmp_path, source).startswith("verifier.jinja:")


RENDER_SCRIPT = """
import json, resource, sys, time
from pathlib import Path
from runner.base.errors import NipRunError
from tests.game.prompts.test_prompts import render_source
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
columns = {"question": "q" * 200_000, "solution": "a\\n" * 20_000, "rows": [["x" * 1000] * 100] * 100}
for source in json.load(sys.stdin):
    started = time.process_time()
    try:
        outcome = len(render_source(Path(sys.argv[1]), source, columns))
    except NipRunError as error:
        outcome = str(error)
    print(json.dumps([outcome, time.process_time() - started]))
"""

EXPENSIVE_TEMPLATES = [
    "{{ question|join(question) }}",
    "{{ question|join(question)|join(question) }}",
    "{{ question|join(question)|join(question)|length }}",
    "{{ ([question]+[question]+[question])|join(question)|join(question) }}",
    "{{ question" + "|join('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')" * 4 + "|length }}",
    "{{ solution|indent('" + "x" * 20_000 + "') }}",
    "{{ solution" + "|indent(40)" * 500 + " }}",
    "{{ solution|indent(100000000) }}",
    "{{ solution|indent(width=100000000, first=true) }}",
    "{% for x in question %}{{ question }}{% endfor %}",
    "{% for x in question %}{% if question|join(question)|length %}{% endif %}{% endfor %}",
    "{{ question }}" * 2000,
    "{{ (" * 10 + "question" + "~question)" * 10 + "|length }}",
    "{% for x in question %}" + "{% if question|title|title %}{% endif %}" * 150 + "{% endfor %}",
    "{% for x in question %}" + "{{ question == question }}" * 200 + "{% endfor %}",
    "{% for x in question %}" + "{% if 'b' in question %}{% endif %}" * 200 + "{% endfor %}",
    "{% for x in question %}" + "{% if question is in [solution] %}{% endif %}" * 150 + "{% endfor %}",
    "{% for x in question %}" + "{% if x %}{% endif %}" * 400 + "{% endfor %}",
    "{% for x in question %}{% if [" + "rows," * 1500 + "1]|length %}{% endif %}{% endfor %}",
    "{% for x in question %}{% if " + "(" * 20 + "question" + "+question)" * 20 + " %}{% endif %}{% endfor %}",
    "{% for x in question if " + "x == 'b' or " * 300 + "false %}{% endfor %}",
    "{{ [" + "question," * 800 + "1] }}",
    "{{ rows" + "|wordcount }}{{ question" * 300 + " }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ 'x'|indent(0 - 99999999999) }}{% for x in question %}" + "{{ '' }}" * 800 + "{% endfor %}",
    "{{ ('x'|indent(100000, true))|trim(question ~ ' ') }}" * 100,
    "{{ (question|indent(100000, true))|trim(['" + "', '".join(map(chr, range(0x100, 0x400))) + "']|join) }}" * 3,
    "{% for x in question %}" + "{{ '' }}" * 800 + "{% endfor %}",
]


@pytest.mark.full
def test_rendering_is_limited_in_time_and_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RENDER_SCRIPT, str(tmp_path)],
        input=json.dumps(EXPENSIVE_TEMPLATES), env=environment(), cwd=tmp_path,
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-300:]
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(EXPENSIVE_TEMPLATES)
    for source, (outcome, seconds) in zip(EXPENSIVE_TEMPLATES, outcomes, strict=True):
        assert isinstance(outcome, str) or outcome <= 4 << 20, source[:60]
        assert seconds < 4, source[:60]


@pytest.mark.parametrize(
    "source",
    [
        "{{ headers[0] }}",
        "{{ question['x'] }}",
        "{{ size[0] }}",
        "{{ size + question }}",
        "{{ size < question }}",
        "{{ size|join }}",
        "{{ size|first }}",
        "{% for x in size %}{% endfor %}",
        "{{ question|trim(5) }}",
    ],
)
def test_rendering_error_names_the_template(tmp_path: Path, source: str) -> None:
    with pytest.raises(NipRunError, match="verifier"):
        render_source(tmp_path, source)


@pytest.mark.parametrize(
    "source",
    ["{{ question['title'] }}", "{{ question['ti' ~ 'tle'] }}", "{{ size['real'] }}", "{{ tags['append'] }}",
     "{% for x in tags %}{{ loop['cycle'] }}{% endfor %}", "{{ question[tags[0]] }}", "{{ loop.index }}"],
)  # fmt: skip
def test_subscript_cannot_read_attributes(tmp_path: Path, source: str) -> None:
    columns = {**COLUMNS, "tags": ["upper"], "loop": "a column"}
    with pytest.raises(RunError, match="has no"):
        render_source(tmp_path, source, columns)


def test_subscript_reads_items_of_lists_and_mappings(tmp_path: Path) -> None:
    columns = {**COLUMNS, "rows": [{"title": "one"}, {"title": "two"}]}
    assert render_source(tmp_path, "{{ rows[1]['title'] }}{{ question[0] }}", columns) == "twoW"


def test_trim_accepts_at_most_64_different_characters(tmp_path: Path) -> None:
    many_characters = "".join(map(chr, range(0x100, 0x180)))
    assert render_source(tmp_path, "{{ tags[0]|trim(tags[1]) }}", {**COLUMNS, "tags": ["--a--", "-" * 1000]}) == "a"
    with pytest.raises(RunError, match="more than 64 different characters"):
        render_source(tmp_path, "{{ tags[0]|trim(tags[1]) }}", {**COLUMNS, "tags": ["--a--", many_characters]})


def test_indent_refuses_a_negative_width(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="uses indent without a number of spaces"):
        render_source(tmp_path, "{{ question|indent(0 - 4) }}")


def test_rendering_more_than_4_mib_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="'verifier' renders to more than 4 MiB"):
        render_source(
            tmp_path, "{% for x in question %}{{ question }}{% endfor %}", {**COLUMNS, "question": "q" * 3000}
        )


def test_deeply_nested_template_is_refused_before_compilation(tmp_path: Path) -> None:
    chain = "{% if " + "size == 1 or " * 120 + "false %}{% endif %}"
    assert refusal_message(tmp_path, chain) == "verifier.jinja:1:1: the template nests too deep"
    assert (
        render_source(tmp_path, chain.replace("size == 1 or " * 120, "size == 5 or " * 80).replace("%}{%", "%}x{%"))
        == "x"
    )


def test_nesting_refusal_due_to_a_deep_call_stack_is_not_cached() -> None:
    source = "{{ " + "(" * 40 + "size" + ")" * 40 + " }}"

    def reasons_at_depth(frames: int) -> list[str]:
        try:
            return [reason for _, reason in scan(source).refused] if frames == 0 else reasons_at_depth(frames - 1)
        except RecursionError:
            return ["none"]

    limit = sys.getrecursionlimit()
    assert "the template nests too deep" in [
        reason for frames_left in range(150, 20, -10) for reason in reasons_at_depth(limit - frames_left)
    ]
    assert scan(source).refused == ()


def test_all_forbidden_constructs_are_reported_with_their_lines(tmp_path: Path) -> None:
    message = refusal_message(tmp_path, "a\n{{ x() }}\n\n{% include 'y' %}\n")
    assert message.split("\n") == [
        "verifier.jinja:2:1: Call is not allowed in a template; use only variables, filters, if and for",
        "verifier.jinja:4:1: Include is not allowed in a template; use only variables, filters, if and for",
    ]


# Text of the dataset


@pytest.mark.parametrize(
    "text",
    ["{{ 7*7 }} ${oc.env:HOME}", "{% raw %}", "{# not a comment #}", "<b>&amp;</b>", "%(x)s {0} \\n", "İ😀\u2028"],
)
def test_text_of_a_datapoint_reaches_the_prompt_unchanged(tmp_path: Path, text: str) -> None:
    assert render_source(tmp_path, "[{{ question }}]", {"question": text}) == f"[{text}]"


def test_rendering_removes_only_the_last_newline_of_the_template(tmp_path: Path) -> None:
    assert render_source(tmp_path, "\ufeffa\n\nb \n\n") == "a\n\nb \n"


def test_allowed_constructs_render(tmp_path: Path) -> None:
    source = (
        "{% if size > 3 and solution is defined %}{{ solution|trim('\\n')|indent(2) }}{% endif %}"
        "{% for h in headers %}{{ loop.index }}{{ h }}{% endfor %}{{ question|upper }}{{ questions_left + 1 }}"
    )
    assert render_source(tmp_path, source) == "def f():\n      return 1WHAT IS IT?1"


# The label and other variables


@pytest.mark.parametrize("name", ["label", "y"])
@pytest.mark.parametrize(
    "source",
    ["a\n{{ NAME }}", "a\n{% if NAME %}x{% endif %}", "a\n{{ NAME|default('') }}", "a\n{{ 'x' if NAME is defined }}"],
)
def test_the_label_must_not_reach_a_prompt(tmp_path: Path, name: str, source: str) -> None:
    path = tmp_path / "verifier.jinja"
    path.write_text(source.replace("NAME", name))
    for columns in ([*COLUMNS, "label", "y"], None):
        with pytest.raises(SpecError) as caught:
            PromptLoader(SOLO, columns, Place("s")).load(tmp_path)
        column = source.split("\n")[1].index("NAME") + 1
        assert [str(p) for p in caught.value.problems] == [
            f"{path}:2:{column}: {name}: the label must not reach a prompt; remove the variable"
        ]


def test_label_is_not_among_the_variables() -> None:
    columns = {**COLUMNS, "label": 1, "y": 1}
    for name in builtin_names():
        protocol = load_protocol(name)
        for agent in protocol.agent_names:
            assert not {"label", "y"} & make_prompt_variables(protocol, agent, columns=columns).keys()


def test_unknown_variable_suggests_the_nearest_name(tmp_path: Path) -> None:
    assert refusal_message(tmp_path, "a\n\n{{ qestion }}") == (
        "verifier.jinja:3:4: qestion: no such variable, and the dataset has no such column; did you mean 'question'?"
    )


def test_dataset_column_is_a_variable(tmp_path: Path) -> None:
    assert render_source(tmp_path, "{{ size }}") == "5"


def test_column_named_like_a_variable_is_refused_if_a_template_uses_it(tmp_path: Path) -> None:
    columns = {**COLUMNS, "agent": "mallory"}
    assert render_source(tmp_path, "{{ question }}", columns) == "What is it?"
    with pytest.raises(SpecError, match="agent: both a column of the dataset and a variable of the runner"):
        render_source(tmp_path, "{{ agent }}", columns)
    assert make_prompt_variables(SOLO, "verifier", columns=columns)["agent"] == "verifier"


def test_every_documented_variable_is_available() -> None:
    assert make_prompt_variables(SOLO, "verifier").keys() - COLUMNS.keys() == VARIABLES.keys()


def test_missing_folder_and_missing_templates_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec.yaml:4:1: prompts: no folder"):
        PromptLoader(SOLO, None, Place("spec.yaml", 4, 1)).load(tmp_path / "no")
    (tmp_path / "verifer.jinja").write_text("")
    with pytest.raises(SpecError) as caught:
        PromptLoader(load_protocol("nip"), None, Place("spec.yaml", 4, 1)).load(tmp_path)
    assert len(caught.value.problems) == 3
