"""Exports a run's verdicts on the samples of Inspect logs as scores in a copy of each log.

A score has the run's id as its name. Its value is the share of accepting verdicts on the sample or its units; its
metadata has the verdict on each unit. If P(accept) was recorded, `RUN_p_accept` and `RUN_suspicion` are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from runner.base.errors import RunError, UsageError, errors_as
from runner.base.package_data import exists
from runner.base.storage.atomic_files import replacing
from runner.base.storage.safe_files import create, make_folders, open_to_read
from runner.exports.export_file import ExportOptions, WrittenExport
from runner.exports.run_source import RunSource
from runner.exports.transcript_verdicts import SampleVerdicts, check_transcripts, read_verdicts
from runner.spec.datasets.limits import Meter, TooLarge
from runner.spec.datasets.settings import limits_for_saved_run
from runner.spec.datasets.transcripts.inspect_logs import SAMPLE_NAME, check_header, check_sample, open_eval_file
from runner.spec.datasets.transcripts.messages import InvalidTranscript
from runner.spec.datasets.transcripts.source import hash_transcripts, transcript_files

NAME = "inspect-scores"
_SUFFIXES = (".eval", ".json")
VerdictsBySample = Mapping[tuple[str, int], SampleVerdicts]
"""The verdicts on the samples of a log, by the sample's id and epoch."""


def write(source: RunSource, options: ExportOptions, target: Path) -> WrittenExport:
    """Write a copy of each log with the scores below `target`.

    Raises:
        UsageError: the run did not judge transcripts, or `--log` is missing, or names other logs than the run judged.
        RunError: a log is damaged, or a copy cannot be written.
    """
    check_transcripts(source)
    logs = _find_logs(source, options.log, target)
    export = WrittenExport(not_carried=["prompts, messages and votes of the judges (--format inspect has them)"])
    by_log = match_logs(logs, _verdicts_by_file(source, export), source.folder.run_id)
    make_folders(target)
    limits = Meter(limits_for_saved_run(source.plan.spec.experiment.dataset.limits))
    for log in logs:
        scored = ScoredLog(source, by_log.get(log, {}))
        try:
            (scored.copy_eval if log.suffix.lower() == ".eval" else scored.copy_json)(log, target / log.name, limits)
        except (
            InvalidTranscript,
            TooLarge,
            TypeError,
            AttributeError,
        ) as error:  # the last two: wrong types in the log
            raise RunError(f"cannot read {log}: {error}") from error
        except OSError as error:
            message = f"cannot write {target / log.name}: {error.strerror}; free disk space or choose another --out"
            raise RunError(message) from error
        export.files[target / log.name] = sum(map(len, scored.values.get(source.folder.run_id, {}).values()))
        if scored.unscored:
            export.omitted[f"samples of {log.name} that the run has no verdict on"] += scored.unscored
    return export


def _find_logs(source: RunSource, path: Path | None, target: Path) -> tuple[Path, ...]:
    """Return the logs that the run judged.

    Raises:
        UsageError: they are missing or differ from those of the run, or the copies would replace them.
    """
    run_id = source.folder.run_id
    if path is None:
        raise UsageError(f"--format {NAME} copies the log that {run_id} judged; name the log with --log FILE")
    if not exists(path):
        raise UsageError(f"--log {path}: there is no such file or folder; correct the path")
    files = transcript_files(path)
    if not files or any(file.suffix.lower() not in _SUFFIXES for file in files):
        raise UsageError(f"--log {path} is not an Inspect log (.eval or .json); --format scout-results needs no log")
    if hash_transcripts(files) != source.manifest.dataset_source_sha256:
        raise UsageError(f"--log {path} differs from the log that {run_id} judged (by hash); name the unchanged log")
    if target.resolve() == files[0].parent.resolve():
        raise UsageError(f"--out {target} has the original log; choose another folder for the copy")
    return files


def _verdicts_by_file(source: RunSource, export: WrittenExport) -> dict[str, VerdictsBySample]:
    verdicts: dict[str, dict[tuple[str, int], SampleVerdicts]] = {}
    for verdict in read_verdicts(source, export):
        of_file = verdicts.setdefault(verdict.file, {})
        of_file.setdefault((verdict.sample, verdict.epoch or 1), SampleVerdicts()).verdicts.append(verdict)
    return {**verdicts}


def match_logs(
    logs: Sequence[Path], verdicts: Mapping[str, VerdictsBySample], run_id: str
) -> dict[Path, VerdictsBySample]:
    """Return the verdicts on each log. The hash of the logs is that of the run, so that only their names may differ.

    The hash depends on the order of the names. So the files of the run and the logs correspond in this order.

    Raises:
        UsageError: there is no verdict, or the names leave open which log a verdict is about.
    """
    if not verdicts:
        raise UsageError(
            f"{run_id} has no verdict of accept or reject, so the copy would have no score; nothing written"
        )
    if len(verdicts) == len(logs):
        return {log: verdicts[file] for log, file in zip(logs, sorted(verdicts), strict=True)}
    by_name = {log.name: log for log in logs}
    if unknown := verdicts.keys() - by_name.keys():
        raise UsageError(
            f"--log has no file {min(unknown)}, which {run_id} judged; give the logs the names that they had in the run"
        )
    return {by_name[file]: of_file for file, of_file in verdicts.items()}


class ScoredLog:
    """A copy of a log with the scores of a run."""

    def __init__(self, source: RunSource, verdicts: VerdictsBySample) -> None:
        self._run_id, self._manifest, self._verdicts = source.folder.run_id, source.manifest, verdicts
        self.values: dict[str, dict[str, list[float]]] = {}
        """The values of each score in all epochs, by its name and the sample's id."""
        self._samples = set[str]()
        self.unscored = 0
        """Number of samples and epochs without a score."""

    def copy_eval(self, log: Path, target: Path, meter: Meter) -> None:
        """Copy a `.eval` file. Members other than samples, summaries and the header stay as they are."""
        with (
            open_eval_file(log, meter) as original,
            replacing(target) as temporary,
            create(temporary) as file,
            ZipFile(file, "w", ZIP_DEFLATED) as copy,
        ):
            if "header.json" not in original.members:
                raise InvalidTranscript("the log has no header.json, because Inspect has not finished it")
            for name in sorted(original.members, key=_order):
                data = original.read(name)
                if name == "header.json":
                    data = _dump(self._add_results(check_header(_load(data, name), name)))
                elif name == "summaries.json":
                    data = _dump([self._add_scores(summary, is_summary=True) for summary in _load(data, name)])
                elif SAMPLE_NAME.fullmatch(name):
                    data = _dump(self._add_scores(check_sample(_load(data, name), name)))
                member = ZipInfo(name)
                member.compress_type = ZIP_DEFLATED
                copy.writestr(member, data)

    def copy_json(self, log: Path, target: Path, meter: Meter) -> None:
        """Copy a log in Inspect's JSON format."""
        meter.check_bytes(log.stat().st_size)
        with open_to_read(log) as file:
            content = check_header(_load(file.read(), log.name), log.name)
        for sample in content.get("samples") or ():
            self._add_scores(check_sample(sample, "a sample"))
        with replacing(target) as temporary, create(temporary) as file:
            file.write(_dump(self._add_results(content)))

    def _add_scores(self, sample: Any, *, is_summary: bool = False) -> Any:
        """Return a sample, or its summary, with the scores of the run, if the run has a verdict on it."""
        id_ = str(sample.get("id"))
        self._samples.add(id_)
        verdicts = self._verdicts.get((id_, sample.get("epoch", 1)))
        if verdicts is None:
            self.unscored += not is_summary
            return sample
        scores = verdicts.scores(self._run_id)
        self._check_names(scores, sample.get("scores") or {})
        if is_summary:  # Inspect's summaries have only short metadata
            scores = {name: {"value": score["value"]} for name, score in scores.items()}
        else:
            for name, score in scores.items():
                self.values.setdefault(name, {}).setdefault(id_, []).append(float(str(score["value"])))
        sample["scores"] = {**(sample.get("scores") or {}), **scores}
        return sample

    def _check_names(self, new: Iterable[str], old: Iterable[str]) -> None:
        """Check that the scores of the run replace no score of the log.

        Raises:
            UsageError: a score of the log has the same name.
        """
        if repeated := {*new} & {*old}:
            raise UsageError(
                f"the log already has a score {min(repeated)!r}, which {self._run_id} would replace; play "
                "the run again with another --run-id, or export with --format scout-results"
            )

    def _add_results(self, header: dict[str, Any]) -> dict[str, Any]:
        """Return the header with the mean of each score. Call this method after all samples.

        As in Inspect, the number of samples and the mean are those of the means over epochs.

        Raises:
            UsageError: the run has verdicts on the log, but not on its samples, or a score has the same name.
        """
        if self._verdicts and not self.values:
            raise UsageError(f"no sample of the log has a verdict of {self._run_id}; name the log that the run judged")
        results = header.get("results") or {"total_samples": 0, "completed_samples": 0}
        self._check_names(self.values, [str(score.get("name")) for score in results.get("scores") or ()])
        params = {"run": self._run_id, "identity": self._manifest.identity, "protocol": self._manifest.protocol}
        new_scores = [
            {
                "name": name,
                "scorer": "nip-run",
                "scored_samples": len(values),
                "unscored_samples": len(self._samples) - len(values),
                "params": params,
                "metrics": {"mean": {"name": "mean", "value": fmean(map(fmean, values.values())), "params": {}}},
            }
            for name, values in self.values.items()
        ]
        return {**header, "results": {**results, "scores": [*(results.get("scores") or ()), *new_scores]}}


def _order(name: str) -> tuple[int, str]:
    """Sort members as Inspect does: the header is last, after the summaries, which are after the samples."""
    return {"header.json": 2, "summaries.json": 1}.get(name, 0), name


def _load(data: bytes, place: str) -> Any:
    """Parse JSON with Python's parser, which keeps large numbers and NaN."""
    with errors_as(InvalidTranscript, f"{ascii(place)[1:121]}: not valid JSON", ValueError, RecursionError):
        return json.loads(data)


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
