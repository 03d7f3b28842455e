"""Write fine-tuning files, results and transcripts for other tools, or send runs to MLflow.

Examples:
  nip-run export RUN --format openai
  nip-run export RUN --format trl --method dpo -o DIR
  nip-run export RUN --format inspect
  nip-run export RUN --format scout -o DIR
  nip-run export RUN --format inspect-scores --log LOG
  nip-run export RUN --format mlflow --follow
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted
from runner.cli.arguments import RUN_HELP, folder_path
from runner.cli.terminal.output import note, print_json, print_table
from runner.exports.formats import FINE_TUNING_FORMATS, FORMAT_NAMES, MLFLOW, RELATIONSHIPS

if TYPE_CHECKING:
    from runner.results.finetune.files import FineTuneFiles
    from runner.results.finetune.formats import Format
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results
    from runner.rollouts.plan import Plan
    from runner.runs.finished.reconstruction import Reconstructor
    from runner.spec.experiment import FineTune


EXPORT_FOLDER = "exports"
"""The folder in a run's folder that receives the files of other formats than fine-tune files."""
_FINE_TUNING_OPTIONS = ("method", "chat_format", "agent", "only_correct", "true_labels")
_RESULT_OPTIONS = ("subject", "organization", "relationship", "hf_dataset", "task_id", "source_url", "log")
_TRACKING_OPTIONS = ("tracking_uri", "experiment", "follow", "journal")


class _Formats(list[str]):
    """The built-in formats, which help lists. `in` also looks for a plugin, and adds all plugins if there is none."""

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        from runner.exports.export_file import EXPORT_PLUGINS

        is_plugin = EXPORT_PLUGINS.find(str(name)) is not None
        if not is_plugin:
            self.extend(EXPORT_PLUGINS.installed_names())  # the error message lists them
        return is_plugin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help=f"{RUN_HELP}; several with --format mlflow")
    add(
        "--format",
        required=True,
        choices=_Formats(FORMAT_NAMES),
        help="fine-tuning files: openai, trl, verl; whole runs to a tracking server: mlflow; results, logs "
        "and transcripts: the others, and the formats of plugins (`nip-run plugins`)",
    )
    _add_fine_tuning_options(parser)
    _add_result_options(parser)
    _add_tracking_options(parser)


def _add_fine_tuning_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--method",
        choices=("sft", "dpo", "rl"),
        help="the training method; default: sft, and rl for verl, its only one",
    )
    add("--chat-format", choices=("openai", "alternating"), help="chat format; default: the one that was played")
    add(
        "-o",
        "--out",
        type=folder_path,
        metavar="DIR",
        help="default: the run's folder, fine_tune/export-FORMAT or exports/FORMAT",
    )
    add("--agent", action="append", metavar="NAME", help="only this agent; repeatable")
    add("--only-correct", action="store_true", help="only rollouts with a correct verdict")
    add("--true-labels", action="store_true", help="replace the verifier's last message with the label")


def _add_result_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--subject", metavar="AGENT", help="the agent whose model the record names")
    add("--organization", metavar="NAME", help="every-eval-ever: who ran the evaluation")
    add(
        "--relationship",
        choices=RELATIONSHIPS,
        help="every-eval-ever: how the evaluator relates to the model developer",
    )
    add("--hf-dataset", metavar="ID", help="the benchmark's dataset on the Hugging Face Hub")
    add("--task-id", metavar="TASK", help="hf-eval-results: the task of that benchmark")
    add("--source-url", metavar="URL", help="hf-eval-results: URL of the result")
    add("--log", type=Path, metavar="LOG", help="inspect-scores: the log, or the folder of logs, that the run judged")


def _add_tracking_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tracking-uri", metavar="URI", help="mlflow: the tracking server; default: $MLFLOW_TRACKING_URI")
    add(
        "--experiment",
        metavar="NAME",
        help="mlflow: the experiment, created if missing; default: $MLFLOW_EXPERIMENT_NAME, else nip-run",
    )
    add("--follow", action="store_true", help="mlflow: send while the run plays; stop when it ends")
    add(
        "--journal",
        action="store_true",
        help="mlflow: also send the journal and the dataset rows, which allow rebuilding the run",
    )


def execute(args: argparse.Namespace) -> int:
    if args.format == MLFLOW:
        _reject_options(args, (*_FINE_TUNING_OPTIONS, *_RESULT_OPTIONS, "out"), "files")
        return _send_to_mlflow(args)
    _reject_options(args, _TRACKING_OPTIONS, "a tracking server (--format mlflow)")
    if len(args.runs) > 1:
        raise UsageError(f"--format {args.format} exports one run, not {len(args.runs)}; export them one by one")
    folder: RunFolder = args.results.find(args.runs[0])
    if folder.manifest().has_parts:
        _reject_training_run(folder, args.format)
    if args.format not in FINE_TUNING_FORMATS:
        return _export_run(args, folder)
    _reject_options(args, _RESULT_OPTIONS, "results, logs and transcripts")
    return _export_fine_tune_files(args, folder)


def _export_fine_tune_files(args: argparse.Namespace, folder: RunFolder) -> int:
    """Write the games of a run as training data."""
    from runner.results.finetune.files import FineTuneFiles, TreeSettings
    from runner.results.folder import FINE_TUNE
    from runner.results.manifest import PLAYED
    from runner.runs.finished.reconstruction import Reconstructor, played_plan

    plan = played_plan(folder, trusts_manifest=True)
    format_ = _choose_format(args.format, args.method, trees=plan.tree_shape is not None)
    _check_exportable(args, folder, plan, format_.method)
    settings = _fine_tune_settings(args, folder, plan)
    target = args.out or folder.make(FINE_TUNE, f"export-{args.format}")
    shape = plan.tree_shape if format_.method == "dpo" else None
    trees = None if shape is None else TreeSettings(shape, plan.spec.experiment.seed)
    swapped_agents = plan.players(swapped=True) if plan.seats else {}
    files = FineTuneFiles(target, settings, plan.players(), folder.run_id, trees, swapped_agents=swapped_agents)
    _show_fine_tune_files(target, _write_fine_tune_files(files, Reconstructor(folder, plan)), as_json=args.json)
    if (status := folder.manifest().status) not in PLAYED:
        note(
            f"run {folder.run_id} is {status.value}, so the files have only the games that are finished; resume the "
            f"run with `nip-run {folder.path}`, then export it again"
        )
    return ExitCode.DONE


def _check_exportable(args: argparse.Namespace, folder: RunFolder, plan: Plan, method: str) -> None:
    """Check that a run has games for a training method, and that the options fit the method.

    Raises:
        UsageError: the run or an option does not fit.
    """
    if plan.debates is not None:
        raise UsageError(
            f"{folder.run_id} judges the debates of {plan.debates.run_id}, so it has no games itself; export the "
            "judged run"
        )
    if not plan.spec.dataset.is_labelled and plan.spec.experiment.dataset.checker is None:
        raise UsageError(
            f"{folder.run_id} has no labels, and fine-tuning files need games with known rewards; export a run on a "
            "dataset with labels"
        )
    if method != "sft" and args.true_labels:
        raise UsageError(f"--true-labels works only with sft, not with {method}; omit --true-labels")
    if method == "dpo" and args.only_correct:
        raise UsageError("--only-correct selects whole games, but dpo compares two answers; omit --only-correct")
    if method == "dpo" and plan.tree_shape is None:
        raise UsageError(
            f"{folder.run_id} has no trees of responses, so there are no preferences to export; play the spec with "
            "rollouts.num_responses_per_timestep=2"
        )


def _fine_tune_settings(args: argparse.Namespace, folder: RunFolder, plan: Plan) -> FineTune:
    """Return the spec's fine-tuning settings, changed by the command's options.

    Raises:
        UsageError: `--true-labels` contradicts the spec.
    """
    from dataclasses import replace

    from runner.spec.experiment import FineTune

    settings = replace(
        plan.spec.experiment.fine_tune or FineTune(),
        agents=tuple(args.agent) if args.agent else None,
        formats=(args.format,),
        chat_format=args.chat_format,
        only_correct=args.only_correct,
        replace_verifier_guess_with_true_label=args.true_labels,
    )
    if settings.replace_verifier_guess_with_true_label and not settings.ensure_last_message_is_assistant:
        raise UsageError(
            f"--true-labels needs fine_tune.ensure_last_message_is_assistant=true, but run {folder.run_id} has false; "
            "omit --true-labels, or play the spec again with true"
        )
    return settings


def _export_run(args: argparse.Namespace, folder: RunFolder) -> int:
    """Write a run in the format of another tool."""
    from runner.exports.export_file import ExportOptions, load_export
    from runner.exports.run_source import RunSource

    _reject_options(args, _FINE_TUNING_OPTIONS, "fine-tune files")
    options = ExportOptions(**{name: getattr(args, name) for name in _RESULT_OPTIONS})
    target = args.out or folder.make(EXPORT_FOLDER, args.format)
    written = load_export(args.format)(RunSource.load(folder), options, target)
    if args.json:
        print_json({"folder": str(target), **written.as_json()})
        return ExitCode.DONE
    rows = [(os.path.relpath(path, target), row_count) for path, row_count in written.files.items()]
    print_table(("file", "rows"), rows, title=str(target))
    for reason, count in written.omitted.items():
        note(f"left out: {reason} ({count})" if count > 1 else f"left out: {reason}")
    for content in written.not_carried:
        note(f"not in this format: {content}")
    return ExitCode.DONE


def _reject_options(args: argparse.Namespace, names: Sequence[str], purpose: str) -> None:
    """Check that no option in `names` is given. The chosen format would not use them.

    Raises:
        UsageError: an option is given.
    """
    unused_options = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]
    if unused_options:
        raise UsageError(
            f"--format {args.format} does not use {comma_join(unused_options)} (only for {purpose}); omit this"
        )


def _reject_training_run(folder: RunFolder, name: str) -> NoReturn:
    """Report that a training run has no games itself, and which runs have its games.

    Raises:
        UsageError: always.
    """
    from runner.results.leaderboard.results_folder import Results

    parts = [part.run_id for part in Results.of(folder).parts_of(folder.run_id)]
    example = f": nip-run export {parts[0]} --format {name}" if parts else ""
    manifest = folder.manifest()
    files = "" if manifest.is_tournament else f"Its training files are in {folder.path / 'iterations'}. "
    raise UsageError(
        f"{folder.run_id} is {manifest.kind_name}. {files}Its games are in other runs "
        f"({comma_join(parts) or 'none yet'}); export those one by one{example}"
    )


def _choose_format(name: str, method: str | None, *, trees: bool) -> Format:
    """Return the format of a training tool. The default method is dpo for trees of responses, if the tool supports it.

    Raises:
        UsageError: the tool does not support the method.
    """
    from runner.results.finetune.formats import FORMATS
    from runner.results.finetune.game_lines import find_format

    if method is None:
        return find_format(name, trees=trees)
    if (name, method) not in FORMATS:
        methods = comma_join(m for n, m in FORMATS if n == name)
        raise UsageError(f"--format {name} does not support --method {method}; choose {methods}")
    return FORMATS[name, method]


def _write_fine_tune_files(files: FineTuneFiles, reconstructor: Reconstructor) -> list[dict[str, object]]:
    try:
        for rollouts in reconstructor.rollouts_by_job():
            files.add(rollouts)
        return files.close()
    except BaseException:
        files.discard()
        raise
    finally:
        reconstructor.close()


def _show_fine_tune_files(target: Path, report: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(target), "files": report})
        return
    rows = [
        (row["file"], row["examples"], row["why_not_written"] or "written",
         f"{row['chat_format']}, {'as' if row['as_played'] else 'not as'} played",
         ", ".join(f"{count} {reason}" for reason, count in row["left_out"].items()))
        for row in report
    ]  # fmt: skip
    print_table(("file", "examples", "result", "chat format", "left out"), rows, title=str(target))


def _send_to_mlflow(args: argparse.Namespace) -> int:
    from runner.exports.mlflow.client import DEFAULT_EXPERIMENT, EXPERIMENT_VARIABLE, connect, tracking_uri
    from runner.exports.mlflow.exporter import Exporter
    from runner.exports.mlflow.sender import Sender

    results: Results = args.results
    folders = list({folder.run_id: folder for folder in map(results.find, args.runs)}.values())
    uri = tracking_uri(args.tracking_uri)
    experiment = args.experiment or os.environ.get(EXPERIMENT_VARIABLE) or DEFAULT_EXPERIMENT
    with closing(Exporter(Sender(connect(uri), uri, experiment), folders, journal=args.journal)) as exporter:
        if args.follow:
            exporter.follow(note)
        elif exporter.send_new():
            note("the run is still in progress; repeat the command to send new records, or add --follow")
    runs = list(exporter.runs.values())
    if args.json:
        print_json({"tracking_uri": uri, "experiment": experiment, "runs": [run.as_json() for run in runs]})
        return ExitCode.DONE
    rows = [(run.run_id, run.mlflow_run_id, run.status, _describe_sent(run.sent)) for run in runs]
    print_table(("run", "MLflow run", "status", "sent now"), rows, title=f"{uri}, experiment {experiment}")
    for run in runs:
        for line in run.notes:
            note(f"{run.run_id}: {line}")
    return ExitCode.DONE


def _describe_sent(sent: Counter[str]) -> str:
    counts = [counted(count, kind) for kind, count in sent.items() if count and kind != "status"]
    return ", ".join(counts) or "nothing new"
