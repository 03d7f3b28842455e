"""Make a dataset: verify solutions, let a model write programs, test and compare them, select rows, write files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, UsageError, os_errors_as
from runner.base.storage.safe_files import make_folders
from runner.base.text import counted, list_some
from runner.curation.generation.coding_problems import read_problems
from runner.curation.generation.dataset_files import MadeDataset, write_dataset
from runner.curation.generation.generation_run import GENERATION, plan_generation, read_answers
from runner.curation.generation.recipe import Recipe
from runner.curation.generation.screening import (
    RejectedProblem,
    Rejection,
    VerifiedProblem,
    screen_programs,
    verify_problems,
)
from runner.curation.generation.selection import select_programs
from runner.curation.generation.verdict_log import VERDICTS, VerdictLog, open_verdict_log
from runner.curation.program_tester import ProgramTestSettings
from runner.curation.sandbox.mechanisms import Mechanism
from runner.curation.sandbox.sandbox import RunLimits
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.rollouts.plan import Plan
from runner.spec.components import FindComponent, reject_references

Report = Callable[[str], None]


@dataclass
class DatasetMaker:
    """Makes one dataset. The steps are in the order of the methods."""

    recipe: Recipe
    folder: Path
    log: VerdictLog
    sandbox: str
    report: Report
    verified: list[VerifiedProblem]
    rejected: dict[str, RejectedProblem]

    def plan(self, find_component: FindComponent = reject_references) -> Plan:
        """Return the plan of the run that asks the model for programs about the verified problems."""
        return plan_generation(self.recipe, self.verified, self.folder / GENERATION, find_component)

    def finish(self, run: RunFolder, manifest: Manifest) -> dict[str, Any]:
        """Test the programs of the finished run, write the dataset, and return its counts.

        Raises:
            RunError: the records cannot be read, or the files cannot be written.
        """
        answers = read_answers(run)
        count = sum(map(len, answers.values()))
        self.report(f"testing {counted(count, 'program')} of the model")
        screened = screen_programs(self.verified, answers, self.log, self.recipe.file)
        selection = select_programs(screened, self.recipe.file)
        dataset = MadeDataset(
            self.recipe, selection, screened, self.rejected, run.run_id, manifest.cost_usd, self.sandbox
        )
        return write_dataset(dataset, self.folder)


@contextmanager
def start_dataset(recipe: Recipe, folder: Path, mechanism: Mechanism, report: Report) -> Iterator[DatasetMaker]:
    """Lock the folder, test the given solutions, and yield what makes the dataset.

    Raises:
        SpecError: no row of the dataset is a problem.
        UsageError: the folder has other files, or no problem has a right solution.
        RunError: the folder is in use or cannot be written.
        SandboxError: the sandbox cannot be started.
    """
    tests = recipe.file.tests
    rows = read_problems(recipe)
    limits = RunLimits(cpu_seconds=tests.cpu_seconds, memory=tests.memory)
    settings = ProgramTestSettings(limits, tests.repetitions, checker=recipe.checker)
    with os_errors_as(RunError, f"cannot create {folder}", "; choose another folder with -o"):
        make_folders(folder)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if names - {GENERATION} and VERDICTS not in names:
        raise UsageError(f"{folder} has other files than a dataset of nip-run; choose another folder with -o")
    with open_verdict_log(folder, mechanism, settings, report) as log:
        if recipe.file.make == "bugs":
            report(f"testing the given solutions of {counted(len(rows.problems), 'problem')}")
        verified, rejected = verify_problems(rows.problems, log, recipe.file)
        rejected |= {id_: RejectedProblem(Rejection.UNUSABLE_ROW, text) for id_, text in rows.unusable.items()}
        if not verified:
            details = list_some([f"{id_}: {problem.detail}" for id_, problem in rejected.items()], 3)
            raise UsageError(
                f"no problem of {recipe.file.dataset.path} has a given solution that passes all tests; correct the "
                f"tests or the solutions. {details}"
            )
        yield DatasetMaker(recipe, folder, log, mechanism.name, report, verified, rejected)
