"""The files of a made dataset: rows, details that tell labels, rejected programs, counts, and a data card."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.parquet import write_parquet
from runner.base.storage.safe_files import make_folders, read_bounded
from runner.base.text import counted, dollars
from runner.curation.generation.recipe import MAX_TEMPLATE, Recipe
from runner.curation.generation.screening import RejectedProblem, ScreenedProblem
from runner.curation.generation.selection import ProgramSelection, SelectedProgram
from runner.documents.croissant import FILE as CROISSANT
from runner.documents.croissant import build_croissant, find_column_kinds
from runner.documents.dataclass_schema import to_plain
from runner.documents.yaml_writer import dump
from runner.game.prompts.sandbox import SandboxedTemplate
from runner.version import __version__

_CARD_TEMPLATE = Path(__file__).resolve().parent / "card.jinja"
DETAILS, REJECTED, COUNTS, CARD = "details.jsonl", "rejected.jsonl", "counts.json", "README.md"
RECIPE, PROBLEMS, PROMPTS, CHECKER = "recipe.yaml", "problems.jsonl", "prompts", "checker.py"
"""The source of the dataset: a recipe and the files that it names."""


@dataclass(frozen=True)
class MadeDataset:
    """Everything that determines the files of a dataset."""

    recipe: Recipe
    selection: ProgramSelection
    screened: Sequence[ScreenedProblem]
    rejected_problems: Mapping[str, RejectedProblem]
    run_id: str
    cost_usd: float | None
    sandbox: str

    @property
    def file_name(self) -> str:
        return f"data.{self.recipe.file.format}"

    def counts(self) -> dict[str, Any]:
        """Return the numbers of problems and programs, and the reasons against unused ones."""
        programs = self.selection.programs
        written = [candidate for item in self.screened for candidate in item.candidates]
        return {
            "problems": len(self.recipe.problems.datapoints),
            "problems_used": len({row.problem_id for row in programs}),
            "problems_not_used": _count(
                [*(problem.rejection for problem in self.rejected_problems.values()), *self.selection.unused.values()]
            ),
            "programs_written": dict(sorted(Counter(candidate.task for candidate in written).items())),
            "programs_rejected": {
                task: _count([c.rejection for c in written if c.task == task and c.rejection is not None])
                for task in self.recipe.file.tasks
            },
            "rows": len(programs),
            "rows_by_label": {str(label): sum(row.label == label for row in programs) for label in (0, 1)},
            "rows_by_split": dict(sorted(Counter(row.split for row in programs if row.split is not None).items())),
            "cost_usd": self.cost_usd,
            "cost_usd_per_row": None if self.cost_usd is None or not programs else self.cost_usd / len(programs),
            "run": self.run_id,
            "model": self.recipe.file.model.name,
            "sandbox": self.sandbox,
            "nip_run": __version__,
            "python": platform.python_version(),
        }


def write_dataset(dataset: MadeDataset, folder: Path) -> dict[str, object]:
    """Write the files of a dataset to a folder, and return its counts. The file with the rows is written last.

    Raises:
        RunError: a file cannot be written.
    """
    counts, rows = dataset.counts(), [_row(row) for row in dataset.selection.programs]
    with os_errors_as(RunError, f"cannot write to {folder}", "; then repeat the command"):
        _write_source(dataset.recipe, folder)
        _write_lines(folder / DETAILS, _details(dataset))
        _write_lines(folder / REJECTED, _rejected(dataset))
        atomic_write(folder / COUNTS, json.dumps(counts, indent=2) + "\n")
        atomic_write(folder / CARD, _card(dataset, counts))
        for name in ("data.jsonl", "data.parquet", CROISSANT):
            if name != dataset.file_name or not rows:
                (folder / name).unlink(missing_ok=True)  # of an earlier version of the dataset
        if rows:
            _write_rows(folder / dataset.file_name, rows)
            croissant = build_croissant(
                dataset.recipe.file.name, dataset.recipe.file.description, None,
                {dataset.file_name: folder / dataset.file_name}, find_column_kinds(rows), rai=_rai_fields(dataset),
            )  # fmt: skip
            atomic_write(folder / CROISSANT, croissant)
    return counts


def _write_source(recipe: Recipe, folder: Path) -> None:
    """Write the problems, the templates and the checker, and a recipe that makes the same dataset from them."""
    points = recipe.problems.datapoints
    _write_lines(folder / PROBLEMS, ({**point.columns, "id": point.id} for point in points))
    make_folders(folder / PROMPTS)
    for task, source in recipe.templates.items():
        atomic_write(folder / PROMPTS / f"{task}.jinja", source)
    content = to_plain(recipe.file)
    content["dataset"] = {"path": PROBLEMS, "group_by": recipe.file.dataset.group_by}
    content["prompts"] = PROMPTS
    if recipe.checker is not None:
        atomic_write(folder / CHECKER, recipe.checker)
        content["tests"]["checker"] = CHECKER
    atomic_write(folder / RECIPE, dump(content))


def _write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    atomic_write(path, (json.dumps(record).encode() + b"\n" for record in records))


def _write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    if path.suffix == ".jsonl":
        _write_lines(path, rows)
        return
    lines = path.with_suffix(".jsonl.part")
    _write_lines(lines, rows)
    kinds = {"text": "VARCHAR", "integer": "BIGINT"}
    try:
        columns = {name: kinds[kind] for name, kind in find_column_kinds(rows).items()}
        write_parquet([lines], columns, path, longest=lines.stat().st_size)
    finally:
        lines.unlink(missing_ok=True)


def _row(row: SelectedProgram) -> dict[str, object]:
    split = {} if row.split is None else {"split": row.split}
    return {
        "id": row.id, "problem": row.problem_id, **split, "question": row.question, "solution": row.source,
        "label": row.label,
    }  # fmt: skip


def _details(dataset: MadeDataset) -> Iterator[dict[str, object]]:
    """Yield the details of each row. They reveal the label, so they have a file of their own."""
    for row in dataset.selection.programs:
        candidate = row.candidate
        details: dict[str, Any] = {
            "id": row.id,
            "label": row.label,
            "task": "given" if candidate is None else candidate.task,
        }
        if candidate is not None:
            details |= {
                "answer": candidate.number, "attempts": dataset.recipe.file.versions,
                "failing_tests": candidate.failing, "failing_fuzzed_inputs": candidate.fuzzed_failing,
                "counterexample": candidate.counterexample, "cost_usd": candidate.cost_usd,
                **({} if candidate.edit is None else {f"edit_{k}": v for k, v in candidate.edit._asdict().items()}),
            }  # fmt: skip
        yield details


def _rejected(dataset: MadeDataset) -> Iterator[dict[str, object]]:
    """Yield the problems without a row, then the programs that cannot be used, with reasons."""
    for id_, (rejection, detail) in dataset.rejected_problems.items():
        yield {"problem": id_, "reason": rejection, "detail": detail}
    for id_, reason in dataset.selection.unused.items():
        yield {"problem": id_, "reason": reason}
    for item in dataset.screened:
        for candidate in item.candidates:
            if candidate.rejection is not None:
                yield {
                    "problem": item.verified.problem.id, "task": candidate.task, "answer": candidate.number,
                    "reason": candidate.rejection, "failing_tests": candidate.failing,
                    "counterexample": candidate.counterexample, "program": candidate.source,
                }  # fmt: skip


def _count(reasons: Sequence[str]) -> dict[str, int]:
    return {
        str(reason): count for reason, count in sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0]))
    }


def _rai_fields(dataset: MadeDataset) -> dict[str, str]:
    """Return the fields of Croissant's vocabulary for responsible AI."""
    file = dataset.recipe.file
    source = "solves problems" if file.make == "proposals" else "edits given right programs"
    repetitions = counted(file.tests.repetitions, "repetition")
    return {
        "dataCollection": f"The model {file.model.name} {source}. nip-run {__version__} tests them in a sandbox.",
        "dataCollectionType": "Synthetic data",
        "dataAnnotationProtocol": f"A program is right (label 1) if it passes all tests of its problem in {repetitions}"
        + (
            ", and wrong (label 0) otherwise."
            if file.make == "proposals"
            else " and agrees with the given solutions on fuzzed inputs. It is wrong (label 0) if it fails a test, or "
            "differs on a fuzzed input where two different given solutions agree."
        ),
        "machineAnnotationTools": f"nip-run {__version__}",
        "dataManipulationProtocol": "Programs that do not compile, equal another program, or give different verdicts "
        "when repeated are removed. Each problem has as many right as wrong programs. Splits divide problems.",
        "dataLimitations": "The labels are only as good as the tests: a program that passes all tests may be wrong.",
        "dataBiases": "The errors are those that the model writes and the tests find, so they may differ from errors "
        "of people. `nip-run audit` measures whether properties of the texts predict the labels.",
        "dataUseCases": "Experiments about oversight, verification and code review.",
        "personalSensitiveInformation": "None is added. The questions come from the source of the problems.",
    }


def _card(dataset: MadeDataset, counts: Mapping[str, Any]) -> str:
    file = dataset.recipe.file
    reasons = [("problem", reason, count) for reason, count in counts["problems_not_used"].items()]
    for task, by_reason in counts["programs_rejected"].items():
        kind = f"{counts['programs_written'].get(task, 0)} programs ({task})"
        reasons += [(kind, reason, count) for reason, count in by_reason.items()]
    source = read_bounded(_CARD_TEMPLATE, MAX_TEMPLATE).decode()
    variables = {
        "name": file.name, "description": file.description or "Right and wrong programs.", "rows": counts["rows"],
        "problems": counts["problems_used"], "right": counts["rows_by_label"]["1"],
        "wrong": counts["rows_by_label"]["0"], "splits": list(counts["rows_by_split"].items()),
        "model": file.model.name, "run": dataset.run_id, "cost": dollars(dataset.cost_usd),
        "cost_per_row": dollars(counts["cost_usd_per_row"]), "reasons": reasons,
        "rai": list(_rai_fields(dataset).items()), "file": dataset.file_name,
    }  # fmt: skip
    return SandboxedTemplate("card.jinja", source).render(variables) + "\n"
