"""The verdicts of a run on transcripts of other tools, by the sample of the transcript that they are about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from runner.base.errors import UsageError
from runner.exports.export_file import WrittenExport
from runner.exports.run_source import ExportedGame, RunSource
from runner.rollouts.rollout import Rollout
from runner.spec.datasets.transcripts.rows import GROUP

_VALUES: Final = {"accept": 1.0, "reject": 0.0}
_NEEDED: Final = (GROUP, "epoch", "transcript_id", "file")
_CONFIDENCES: Final = ("confidence_stated", "confidence_logprob")


@dataclass(frozen=True)
class TranscriptVerdict:
    """A verdict on a unit of a transcript: 1 for accept, 0 for reject, and P(accept) if it was recorded."""

    rollout: Rollout
    file: str
    sample: str
    epoch: int | None
    transcript_id: str | None
    message_id: str | None
    value: float
    confidence: float | None


@dataclass
class SampleVerdicts:
    """The verdicts on one sample or on its units."""

    verdicts: list[TranscriptVerdict] = field(default_factory=list)

    def scores(self, name: str) -> dict[str, dict[str, object]]:
        """Return Inspect's scores: the share of accepting verdicts.

        If P(accept) was recorded, also return its mean, and the suspicion of the sample.
        """
        units = [
            {
                "id": verdict.rollout.job.datapoint.id,
                "rollout_id": verdict.rollout.job.rollout_id,
                "value": verdict.value,
                **({} if verdict.confidence is None else {"p_accept": verdict.confidence}),
            }
            for verdict in self.verdicts
        ]
        scores = {name: [verdict.value for verdict in self.verdicts]}
        confidences = [verdict.confidence for verdict in self.verdicts if verdict.confidence is not None]
        if confidences:
            scores[f"{name}_p_accept"] = confidences
        exported: dict[str, dict[str, object]] = {
            key: {"value": fmean(values), "metadata": {"max": max(values), "units": units}}
            for key, values in scores.items()
        }
        if self.suspicion is not None:
            exported[f"{name}_suspicion"] = {"value": self.suspicion, "metadata": {"units": units}}
        return exported

    @property
    def suspicion(self) -> float | None:
        """The largest 1 - P(accept) of the units, since label 1 is benign; None if no unit has a P(accept)."""
        suspicions = [1 - verdict.confidence for verdict in self.verdicts if verdict.confidence is not None]
        return max(suspicions, default=None)


def check_transcripts(source: RunSource) -> None:
    """Check that a run judged transcripts.

    Raises:
        UsageError: its dataset was a table.
    """
    if source.manifest.dataset_selection.get("transcripts") is None:
        raise UsageError(
            f"{source.folder.run_id} did not judge transcripts, since its spec has no dataset.transcripts; export it "
            "with --format inspect or --format scout"
        )
    missing = [name for name in _NEEDED if name not in source.plan.spec.dataset.columns]
    if missing:
        raise UsageError(
            f"{source.folder.run_id} has no column {missing[0]!r}, which names the sample of a transcript; play a spec "
            "that does not rename or join this column"
        )


def read_verdicts(source: RunSource, export: WrittenExport) -> Iterator[TranscriptVerdict]:
    """Yield the verdict of each game. Games without a verdict are counted in `export`, and never as a rejection."""
    for game in source.games():
        value = _VALUES.get(game.verdict or "")
        if value is None:
            export.omitted[f"games without a verdict of accept or reject ({game.rollout.outcome.value})"] += 1
        else:
            yield _build_verdict(game, value)


def _build_verdict(game: ExportedGame, value: float) -> TranscriptVerdict:
    columns = game.rollout.job.datapoint.columns
    confidences = (game.facts.get(name) for name in _CONFIDENCES)
    epoch, transcript, message = columns["epoch"], columns["transcript_id"], columns.get("message_id")
    return TranscriptVerdict(
        game.rollout,
        str(columns["file"]),
        str(columns[GROUP]),
        epoch if isinstance(epoch, int) else None,
        None if transcript is None else str(transcript),
        None if message is None else str(message),
        value,
        next((float(number) for number in confidences if isinstance(number, (int, float))), None),
    )
