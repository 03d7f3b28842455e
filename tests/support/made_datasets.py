"""Recipes, planted authors and problems, for tests that make datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner import run
from runner.curation.generation.maker import start_dataset
from runner.curation.generation.recipe import load_recipe
from runner.curation.sandbox.mechanisms import Mechanism
from tests.support.servers.client import LoopbackServer, run_loopback_server

Rule = tuple[list[str], list[str]]
"""Texts in a prompt, and the answers to it (see `tests.support.servers.author`)."""


def answer_with(program: str) -> str:
    return f"Here it is:\n```python\n{program.strip()}\n```\n"


def planted_rules(question: str, bugs: Iterable[str], refactorings: Iterable[str]) -> list[Rule]:
    """Return an author's rules for edits of the program about a question."""
    return [
        (["one subtle error", question], [answer_with(program) for program in bugs]),
        (["stays right", question], [answer_with(program) for program in refactorings]),
    ]


@contextmanager
def run_author(folder: Path, rules: Sequence[Rule], **options: Any) -> Iterator[LoopbackServer]:
    """Run an author with rules, which are stored in `rules.json` in the folder."""
    (folder / "rules.json").write_text(json.dumps(rules), "utf-8")
    planted = str(folder / "rules.json")
    with run_loopback_server(LoopbackServer, "author", planted_file=planted, **options) as server:
        yield server


def write_problems(path: Path, *problems: Mapping[str, Any]) -> None:
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems), "utf-8")


def write_recipe(folder: Path, server: LoopbackServer, **keys: Any) -> Path:
    """Write `recipe.yaml` with the problems in `problems.jsonl` and the author at a server."""
    content = {
        "name": "tiny-bugs",
        "dataset": {"path": "problems.jsonl"},
        "tests": {"format": "apps"},
        "model": {
            "provider": "openai", "model": "wise", "base_url": server.base_url, "price": {"input": 1.0, "output": 2.0},
        },
        **keys,
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(content), "utf-8")
    return path


def make_here(
    recipe: Path, folder: Path, mechanism: Mechanism, *overrides: str, results: Path | None = None
) -> dict[str, Any]:
    """Make a dataset in this process without testing the mechanism with attacks first, and return its counts."""
    loaded = load_recipe(recipe, overrides)
    with start_dataset(loaded, folder, mechanism, lambda _: None) as maker:
        result = run(maker.plan().spec, results or recipe.parent / "results")
        return maker.finish(result.folder, result.manifest)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def programs_by_label(folder: Path) -> dict[int, list[str]]:
    """Return the programs of a made dataset by label."""
    rows: Sequence[Mapping[str, Any]] = read_lines(folder / "data.jsonl")
    return {label: [row["solution"] for row in rows if row["label"] == label] for label in (0, 1)}
