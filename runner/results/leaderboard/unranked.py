"""The reasons why a row of a leaderboard is unranked."""

from __future__ import annotations

import re
from enum import StrEnum


class Unranked(StrEnum):
    """A reason why a row is unranked: a text with placeholders, such as `replay of {run}`."""

    FAILED = "unfinished: it failed"
    UNFINISHED = "unfinished: {status}"
    LOST_ROLLOUTS = "incomplete: {lost} of {rollouts} rollouts lost in transport"
    REPLAY = "replay of {run}"
    REJUDGED = "judges the debates of {run}"
    ANALYSIS = "an analysis of {run}, which has no right answers"
    TREE = "tree: its samples are not independent games"
    UNKNOWN_TASK = "unknown task: its saved inputs cannot be read"
    NO_LABELS = "no labels: the owner of its dataset hides them"
    NO_METRICS = "damaged: its metrics or tables are missing; verify it"
    NO_VERDICT = "no rollout has a verdict to count"
    SHARED_ANSWERS = (
        "not a sample of its own: {shared} of its {verdicts} verdicts come from answers that it shares with {other}"
    )
    OTHER_COLUMNS = "its templates use other columns: {columns} (this list: {others}){settings}"
    OTHER_DATAPOINTS = (
        "other datapoints, such as {datapoint}: ids, groups, labels or contents differ; `nip-run compare` says how"
        "{settings}"
    )
    TRAINING_RUN = "a training run"
    SEVERAL_TASKS = "its seeds have different tasks; {run} against {other}: {difference}"
    ALONE = "alone with its task; against {other}: {difference}"
    MISSING_RUNS = "{runs}: {status}"
    REPLAYED_ANSWERS = "its answers are a replay of another run"

    def sql(self, **placeholders: str) -> str:
        """Return a SQL expression for the text of the reason, given a SQL expression for each placeholder."""
        parts = re.split(r"\{(\w+)\}", self.value)
        expressions = (placeholders[part] if index % 2 else f"'{part}'" for index, part in enumerate(parts) if part)
        return " || ".join(expressions)

    def matches(self, reason: str | None) -> bool:
        """Return whether a text is this reason, with any values of the placeholders."""
        pattern = ".*".join(map(re.escape, re.split(r"\{\w+\}", self.value)))
        return reason is not None and re.fullmatch(pattern, reason, re.DOTALL) is not None


OTHER_TASK = (Unranked.OTHER_COLUMNS, Unranked.OTHER_DATAPOINTS)
"""The reasons of rows with another task than the list that they are shown in."""
