"""Rows of a dataset from the samples of transcripts: one for each sample, message or tool call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runner.base.text import comma_join, counted, did_you_mean, list_some
from runner.spec.datasets.settings import TranscriptSettings
from runner.spec.datasets.transcripts.messages import TranscriptSample, match_results, render_messages

Row = dict[str, Any]
GROUP: Final = "sample"
"""The column with the id of a sample, which groups its epochs, messages and tool calls."""
SCORE_PREFIX: Final = "score_"
METADATA_PREFIX: Final = "metadata_"
_GRADES: Final[Mapping[str, float]] = {
    "c": 1, "i": 0, "p": 0.5, "n": 0, "yes": 1, "no": 0, "true": 1, "false": 0,
}  # fmt: skip
"""The numbers of Inspect's grades (correct, incorrect, partial, no answer) and of its words, in lower case."""


class NoUsableRows(Exception):
    """Raised if a setting leaves no rows, such as a score that no sample has. `key` is the spec key of the setting."""

    def __init__(self, key: str, message: str) -> None:
        self.key = f"dataset.{key}"
        super().__init__(message)


@dataclass
class RowBuilder:
    """Builds the rows of samples, and counts the samples that are skipped."""

    settings: TranscriptSettings
    score_names: dict[str, None] = field(default_factory=dict)
    """The names of the scores and the metadata of all samples, in their order."""
    _failed: list[str] = field(default_factory=list)
    _unscored: list[str] = field(default_factory=list)
    _samples: int = 0
    _rows: int = 0

    def rows_of(self, sample: TranscriptSample, file: str, prefix: str) -> Iterator[Row]:
        """Yield the rows of a sample. With a label, skip a sample that failed or has no score."""
        self._samples += 1
        self.score_names |= dict.fromkeys([*sample.scores, *sample.metadata])
        id_ = prefix + sample.id
        row: Row = {"id": id_}
        if self.settings.label is not None:
            value = sample.scores.get(self.settings.label, sample.metadata.get(self.settings.label))
            label = _label_of(value, self.settings.threshold)
            if sample.error is not None or label is None:
                (self._unscored if sample.error is None else self._failed).append(id_)
                return
            row["label"] = label
        else:
            row["label"] = None
        scores = {f"{SCORE_PREFIX}{name}": _finite(value) for name, value in sample.scores.items()}
        metadata = {f"{METADATA_PREFIX}{name}": _finite(value) for name, value in sample.metadata.items()}
        row |= {
            GROUP: sample.sample, "epoch": sample.epoch, "transcript_id": sample.transcript_id, "file": file,
            "task": sample.task, "model": sample.model, "input": sample.input, "target": sample.target,
            "error": sample.error, **scores, **metadata,
        }  # fmt: skip
        for unit in self._units(sample):
            self._rows += 1
            yield {**row, **unit, "id": row["id"] + unit.get("id", "")}

    def _units(self, sample: TranscriptSample) -> Iterator[Row]:
        """Yield the columns of each unit, with the end of its id."""
        texts = list(render_messages(sample.messages, reasoning=self.settings.reasoning))
        if self.settings.unit == "sample":
            yield {"transcript": "\n\n".join(texts)}
            return
        results = match_results(sample.messages)
        for index, message in enumerate(sample.messages):
            columns: Row = {
                "number": index + 1, "role": message.role, "message_id": message.id, "message": message.text,
                "reasoning": message.reasoning,
            }  # fmt: skip
            if self.settings.unit == "message":
                columns |= {"tool": message.name or None if message.role == "tool" else None, "agent": message.name}
                yield {"id": f"-m{index + 1}", "transcript": "\n\n".join(texts[:index]), **columns}
                continue
            for position, call in enumerate(message.tool_calls):
                result = results.get((index, position))
                columns |= {
                    "tool": call.tool, "arguments": call.arguments,
                    "result": None if result is None else sample.messages[result].text,
                }  # fmt: skip
                yield {"id": f"-m{index + 1}-c{position + 1}", "transcript": "\n\n".join(texts[:index]), **columns}

    def notes(self) -> list[str]:
        """Return a line about the skipped samples, or no line if none was skipped.

        Raises:
            NoUsableRows: no sample has the score, or all samples were skipped, or none has such a unit.
        """
        label = self.settings.label
        if not self._samples:
            raise NoUsableRows("path", "there are no samples in the transcripts; name another file")
        if label is not None and label not in self.score_names:
            hint = did_you_mean(label, self.score_names) or (
                f"; choose one of {comma_join(self.score_names)}" if self.score_names else "; set null"
            )
            raise NoUsableRows("transcripts.label", f"no sample has a score or metadata {label!r}{hint}")
        skipped = [
            f"{counted(len(ids), 'sample')} {reason}: {list_some(ids)}"
            for reason, ids in (("that failed", self._failed), (f"without a usable {label!r}", self._unscored))
            if ids
        ]
        if not self._rows and skipped:
            raise NoUsableRows(
                "transcripts.label", f"leaves no rows: {'; '.join(skipped)}; choose another score, or set null"
            )
        if not self._rows:
            raise NoUsableRows("transcripts.unit", f"no transcript has a {self.settings.unit}; choose another unit")
        return [f"dataset.transcripts.label skips {'; '.join(skipped)}"] if skipped else []


def _label_of(value: Any, threshold: float) -> int | None:
    """Return 1 if a score reaches the threshold, 0 if it does not, and None if it is not a single number or grade."""
    if isinstance(value, str):
        value = _GRADES.get(value.strip().casefold(), value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else int(number >= threshold)


def _finite(value: Any) -> Any:
    """Return a value with null for each number that JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
