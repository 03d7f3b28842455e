"""Names and first lines of docstrings are clear to newcomers. CONTRIBUTING has the rules and examples.

The test is a net with holes: reword its findings, but other names may also be unclear.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.modules import FILES, tree, walk
from tests.support.paths import ROOT

OPAQUE = {
    "ahead", "anew", "apart", "asked", "begun", "beside", "found", "given", "going_on", "held", "kept", "known",
    "laid_out", "left_out", "made", "named", "one", "ones", "ours", "own", "said", "saying", "seen", "shown", "taken",
    "telling", "theirs", "there", "told", "told_of", "unsecret", "wanted", "whole", "whose",
}  # fmt: skip
"""Participles and pronouns that do not say what a variable, function or module contains."""

FIRST_WORDS = re.compile(
    r"(?:What|That|Of|With|These|Those|Its|His|Their|In the|To be|As|By|From|So|Where|When|Here|Likewise)\b"
)
"""Beginnings of docstrings that describe something by a clause. A function's docstring begins with a verb."""

STORED = "a field of a file, of JSON, of an HTTP API or of a template"
EXCEPTIONS: dict[str, tuple[str, frozenset[str]]] = {
    "runner.game.protocols.rounds": (STORED, frozenset({"asked"})),
    "runner.registry.board.board": (STORED, frozenset({"left_out"})),
    "runner.results.answer_origins": ("answers of its own, as opposed to replayed ones", frozenset({"own"})),
    "runner.results.baseline_scores": (STORED, frozenset({"asked"})),
    "runner.results.comparison.comparison": (STORED, frozenset({"held"})),
    "runner.rollouts.recorded_debates": (STORED, frozenset({"left_out"})),
    "runner.server.uploads.uploads": (STORED, frozenset({"taken"})),
    "runner.training.stages": (STORED, frozenset({"left_out"})),
}
"""The modules that may use some of these names, with the reason."""


def opaque_names(code: ast.AST) -> Iterator[str]:
    """Yield names that are defined and belong to `OPAQUE`."""
    for node in walk(code):
        name = ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if name.strip("_").lower() in OPAQUE:
            yield name.strip("_").lower()


def unclear_docstrings(code: ast.AST) -> Iterator[str]:
    """Yield docstrings, of fields too, that begin with one of `FIRST_WORDS`."""
    for node in walk(code):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = node.value.value.strip()
            if FIRST_WORDS.match(text):
                yield text.partition("\n")[0]


@pytest.mark.gate
def test_names_describe_their_values() -> None:
    names_by_module = {module: frozenset(opaque_names(tree(module))) for module in FILES}
    extra = {module: names - EXCEPTIONS.get(module, ("", frozenset()))[1] for module, names in names_by_module.items()}
    assert {module: names for module, names in extra.items() if names} == {}
    unused = {module: allowed - names_by_module.get(module, frozenset()) for module, (_, allowed) in EXCEPTIONS.items()}
    assert {module: names for module, names in unused.items() if names} == {}, "remove these exceptions"


@pytest.mark.gate
def test_docstrings_begin_with_a_verb_or_noun() -> None:
    assert {module: texts for module in FILES if (texts := list(unclear_docstrings(tree(module))))} == {}


@pytest.mark.parametrize(
    "code", ["told = 1", "def f(one): ...", "self.kept = 2", "def _made(): ...", "class Told: ..."]
)
def test_an_opaque_name_is_found(code: str) -> None:
    assert list(opaque_names(ast.parse(code)))


def test_an_unclear_docstring_is_found() -> None:
    assert list(unclear_docstrings(ast.parse('def f():\n    """What it is."""')))
    assert not list(unclear_docstrings(ast.parse('def f():\n    """Return its size."""')))


def test_contributing_asks_for_plain_english() -> None:
    assert "plain English" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.mark.gate
def test_no_message_continues_after_the_question_of_a_suggestion() -> None:
    """`did_you_mean` ends with a question mark."""
    sources = {path: path.read_text("utf-8") for path in (ROOT / "runner").rglob("*.py")}
    assert [path for path, text in sources.items() if re.search(r"\{did_you_mean\([^{}]*\)\};", text)] == []
