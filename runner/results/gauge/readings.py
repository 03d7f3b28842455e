"""Read the judge's readings in finished runs: each verdict with its request, its answer and its unit.

A unit is what is judged: a datapoint or, for a run that judges debates again, a debate. Runs of one gauge are variants
of one judge. The settings that may differ between them are facets, such as `decision_format` and `prompts`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from runner.base.errors import RunError, UsageError, errors_as
from runner.base.hashing import tagged_hash
from runner.base.storage.duckdb_connections import read_only_table
from runner.base.text import comma_join
from runner.game.protocols.protocol import Protocol
from runner.models.interface import SampleKey
from runner.models.journal_index import JournalIndex, open_index
from runner.models.journal_records import CallRecord
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, verifiers_of
from runner.results.saved_spec import look_up, read_saved_spec
from runner.results.table_columns import COLUMNS
from runner.results.tasks import played_datapoints
from runner.rollouts.rollout import Outcome
from runner.spec.loader import load_saved

PROMPTS, LABEL_WORDS, TIME, ANSWER_POSITION = "prompts", "decision_format", "time", "answer_position"
_SAMPLING = (
    "temperature", "top_p", "max_completion_tokens", "max_tokens", "seed", "stop", "reasoning_effort", "extra_body",
    "system_role", "chat_format",
)  # fmt: skip
"""Settings of a model that change its answers. The address and limits do not."""
_COLUMNS = (
    "datapoint_id", "repeat", "stance", "swapped", "stances_exchanged", "rounds", "y", "decision", "correct", "votes",
    "confidence_logprob", "confidence_stated", "answer", "right_answers", "answer_order", "p_right",
)  # fmt: skip
FACETS = (PROMPTS, LABEL_WORDS, "protocol", "models", "agents", "verdict", "seed", TIME, ANSWER_POSITION)
"""The settings and circumstances that may differ between runs of one judge."""
NO_VERDICT = 2
"""The code of a reading without a verdict, beside 0 (reject) and 1 (accept)."""
_FIRST_ANSWER = 3
"""The code of the first listed answer, in the order of the dataset."""

Unit = tuple[Any, ...]


class Reading(NamedTuple):
    """One verdict of a judge."""

    unit: Unit
    group: str
    request: str
    """The hash of the request."""
    answer: str
    """The hash of the answer's text."""
    verdict: int
    correct: bool | None
    """Whether the verdict is right; None without labels."""
    probability: float | None
    """P(accept) or the probability of the right answer, if the run records it."""
    position: int | None
    """The position of the right answer, if the verdict chooses one of several listed answers and one is right."""


@dataclass(frozen=True)
class GaugedRun:
    """A run of a judge, its settings by facet, and its readings."""

    run_id: str
    started_at: str
    judge: str
    """The hash of the judge: protocol and model."""
    settings: Mapping[str, str]
    """The hash of the settings of each facet. `time` numbers the runs with otherwise equal settings."""
    readings: tuple[Reading, ...]
    copied: int
    """The number of verdicts whose answers a cache copied from another run. They do not count as readings."""
    lost: int = 0
    """The number of games without a verdict because their calls failed."""
    models: Mapping[str, int] = field(default_factory=dict)
    """The number of answers by the model's name that the server reported."""
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    """The number of answers by the server's `system_fingerprint`, if it reported any."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """The hash of what the judge reads of each datapoint."""
    spec_values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The values of spec keys by facet, to name levels. A facet may have none."""

    @property
    def variant(self) -> str:
        """The hash of the judge and its settings, without the time."""
        return variant_hash(self.judge, self.settings)


def variant_hash(judge: str, settings: Mapping[str, str]) -> str:
    """Return the hash of a judge's settings that change its answers. The run's seed and the time are left out."""
    lasting = {name: value for name, value in settings.items() if name not in (TIME, "seed")}
    return tagged_hash("judge variant", [judge, lasting])


def judge_settings(folder: RunFolder, manifest: Manifest) -> tuple[str, dict[str, str]]:
    """Return the hash of a run's judge (protocol and model), and the hash of its settings by facet."""
    spec = read_saved_spec(folder)
    rows = [row for row in manifest.agents if row["role"] == "verifier"]
    names = sorted(row["agent"] for row in rows)
    models = [look_up(spec, "models", row["model_group"]) or {} for row in rows]
    protocol = {name: value for name, value in (look_up(spec, "protocol") or {}).items() if name != "use"}
    agents = [look_up(spec, "agents", name) or {} for name in names]
    values: dict[str, Any] = {
        PROMPTS: {
            name: digest
            for name, digest in manifest.prompts_sha256.items()
            if name.partition(".")[0] in names
        },
        LABEL_WORDS: look_up(spec, LABEL_WORDS),
        "protocol": protocol,
        "models": [{name: model.get(name) for name in _SAMPLING} for model in models],
        "agents": [{name: value for name, value in agent.items() if name != "model"} for agent in agents],
        "verdict": look_up(spec, "verdict"),
        "seed": manifest.seed,
    }  # fmt: skip
    judge = tagged_hash("judge", [manifest.protocol, *map(list, verifiers_of(manifest))])
    return judge, {name: tagged_hash(name, value) for name, value in values.items()}


def load_gauged_runs(folders: Sequence[RunFolder]) -> list[GaugedRun]:
    """Return the runs of one gauge with their readings, in the given order.

    Raises:
        UsageError: a run has no single judge, is not finished or played trees; or the runs have different judges, or
            judge different messages of provers, or other datapoints with the same ids.
        RunError: a file of a run is missing or damaged.
    """
    manifests = [folder.manifest() for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        _check_run(folder, manifest, is_alone=len(folders) == 1)
    runs = [_load_run(folder, manifest) for folder, manifest in zip(folders, manifests, strict=True)]
    for run, manifest in zip(runs, manifests, strict=True):
        if run.judge != runs[0].judge:
            models = comma_join(sorted({model for m in (manifest, manifests[0]) for _, model in verifiers_of(m)}))
            raise UsageError(
                f"{run.run_id} has another judge than {runs[0].run_id} (protocol or model: {models}); gauge one judge "
                "at a time"
            )
    _check_contents(runs)
    return _number_times(runs)


def _check_contents(runs: Sequence[GaugedRun]) -> None:
    """Check that datapoints with one id have the same content. The content depends on the columns in the prompts."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        for name, content in run.contents.items():
            other, expected = first.setdefault((run.settings[PROMPTS], name), (run.run_id, content))
            if content != expected:
                raise UsageError(
                    f"{run.run_id} and {other} have different datapoints with the id {name!r}; gauge "
                    "runs of one dataset"
                )


def _check_run(folder: RunFolder, manifest: Manifest, *, is_alone: bool) -> None:
    """Check that a run has readings of one judge that can be used together with those of other runs."""
    name = folder.run_id
    if manifest.has_parts:
        raise UsageError(f"{name} is {manifest.kind_name}; gauge one of its runs, such as {manifest.example_part}")
    if manifest.status not in PLAYED:
        raise UsageError(f"run {name} is {manifest.status}; gauge it once it is done")
    if len(verifiers_of(manifest)) != 1:
        raise UsageError(f"{name} has {len(verifiers_of(manifest))} judges; gauge a run with one")
    if look_up(read_saved_spec(folder), "rollouts", "num_responses_per_timestep") is not None:
        raise UsageError(f"{name} played trees, whose branches share rounds; gauge a run without them")
    if manifest.replay_of is not None:
        raise UsageError(f"{name} is a replay of {manifest.replay_of.run_id}, with the same answers; gauge that run")
    if not is_alone and manifest.rejudge_of is None and len(manifest.agents) > 1:
        raise UsageError(
            f"{name} has provers, whose messages differ from run to run; judge the debates of one run in all variants: "
            f"nip-run gauge {name} votes=3 'sweep=...'"
        )


def _number_times(runs: Sequence[GaugedRun]) -> list[GaugedRun]:
    """Return the runs with the facet `time`, which numbers runs with equal settings in the order of their starts."""
    numbers: dict[str, list[GaugedRun]] = {}
    for run in sorted(runs, key=lambda run: (run.started_at, run.run_id)):
        numbers.setdefault(tagged_hash("settings", dict(run.settings)), []).append(run)
    times = {run.run_id: str(number) for same in numbers.values() for number, run in enumerate(same)}
    return [replace(run, settings={**run.settings, TIME: times[run.run_id]}) for run in runs]


def _load_run(folder: RunFolder, manifest: Manifest) -> GaugedRun:
    judge, settings = judge_settings(folder, manifest)
    spec, agent = read_saved_spec(folder), next(r["agent"] for r in manifest.agents if r["role"] == "verifier")
    with errors_as(RunError, f"the inputs of {folder.path} cannot be read", OSError, ValueError):
        points = list(played_datapoints(folder, look_up(spec, "dataset", "group_by")))
    groups = {point.id: point.group for point in points}
    table = read_only_table("rollouts", folder.intact_table("rollouts"), COLUMNS["rollouts"])
    rows = table.filter(f"outcome <> '{Outcome.TRANSPORT_FAILED}'").project(", ".join(_COLUMNS)).fetchall()
    lost = len(table) - len(rows)
    if not folder.journal.is_file():
        raise RunError(f"{folder.path} has no {folder.journal.name}; restore the journal from a backup")
    reader, index = open_index(folder.journal, manifest.identity)
    with closing(reader):
        first_stance = None if spec.get("stances") is None else _first_stance(load_saved(folder.spec).protocol)
        journal = _JudgeJournal(index, agent, first_stance)
        readings = tuple(
            reading
            for values in rows
            for reading in journal.readings(dict(zip(_COLUMNS, values, strict=True)), manifest, groups)
        )
    return GaugedRun(
        folder.run_id, manifest.started_at, judge, settings, readings, journal.copied, lost,
        journal.models, journal.fingerprints, {point.id: point.content_sha256 for point in points},
        _spec_values(spec, manifest),
    )  # fmt: skip


def _spec_values(spec: Mapping[str, object], manifest: Manifest) -> dict[str, dict[str, object]]:
    """Return the values of a run's spec keys by facet. The saved spec has a copy of the prompts, not their path."""
    (row,) = (row for row in manifest.agents if row["role"] == "verifier")
    model = look_up(spec, "models", row["model_group"]) or {}
    sections = {
        LABEL_WORDS: (LABEL_WORDS, look_up(spec, LABEL_WORDS)), "protocol": ("protocol", look_up(spec, "protocol")),
        "models": (f"models.{row['model_group']}", {name: model.get(name) for name in _SAMPLING}),
        "agents": (f"agents.{row['agent']}", look_up(spec, "agents", row["agent"])),
        "verdict": ("verdict", look_up(spec, "verdict")),
    }  # fmt: skip
    return {
        PROMPTS: {PROMPTS: manifest.point[PROMPTS]} if PROMPTS in manifest.point else {},
        **{
            facet: {f"{prefix}.{name}": value for name, value in (section or {}).items()}
            for facet, (prefix, section) in sections.items()
        },
        "seed": {"seed": manifest.seed},
    }


class _JudgeJournal:
    """The judge's answers in the journal of a run, and counts of the servers that gave them."""

    def __init__(self, index: JournalIndex, agent: str, first_stance: int | None) -> None:
        self._index, self._agent, self._first_stance = index, agent, first_stance
        self.copied = 0
        self.models: Counter[str] = Counter()
        self.fingerprints: Counter[str] = Counter()

    def readings(self, row: Mapping[str, Any], manifest: Manifest, groups: Mapping[str, str]) -> Iterator[Reading]:
        """Yield the readings of a game, given its row of the table `rollouts`."""
        datapoint = row["datapoint_id"]
        number = _game_number(row, self._first_stance)
        for vote, verdict, correct in _verdicts(row):
            sample = SampleKey(datapoint, number, row["rounds"] - 1, self._agent, 0, vote)
            first, last = _answers(self._index, sample)
            if first is None or last is None:
                continue
            if last.completion.origin is not None:
                self.copied += 1
                continue
            self._count_server(last)
            text = (last.completion.choices[0].text or "").encode("utf-8", "surrogatepass")
            yield Reading(
                _unit_of(row, manifest), groups[datapoint],
                f"{first.request.parameters[:8]} {first.request.messages}", hashlib.sha256(text).hexdigest()[:32],
                verdict, correct, _probability(row), _right_position(row),
            )  # fmt: skip

    def _count_server(self, record: CallRecord) -> None:
        """Count the model's name and the fingerprint that the server reported with an answer."""
        body = record.completion.body
        fingerprint = None if body is None or body.is_deep else orjson.loads(body.json).get("system_fingerprint")
        self.models[record.completion.model] += 1
        if isinstance(fingerprint, str):
            self.fingerprints[fingerprint] += 1


def _unit_of(row: Mapping[str, object], manifest: Manifest) -> Unit:
    """Return what a game's verdict is about: the datapoint or, if provers speak, the debate."""
    if len(manifest.agents) == 1 and manifest.rejudge_of is None:
        return (row["datapoint_id"],)
    source = manifest.run_id if manifest.rejudge_of is None else manifest.rejudge_of.run_id
    return (source, *(row[name] for name in ("datapoint_id", "repeat", "swapped", "stance", "stances_exchanged")))


def _first_stance(protocol: Protocol) -> int:
    """Return the stance of the first prover unless provers exchange their stances."""
    return protocol.default_stance(protocol.prover_names[0])


def _game_number(row: Mapping[str, Any], first_stance: int | None) -> int:
    """Return the number of a game among those of its datapoint, as in `Job.number`.

    `first_stance` is None if the run does not play datapoints with both stances.
    """
    number, stance = int(row["repeat"]), None
    if first_stance is not None:  # opposed provers have no common stance
        is_exchanged = row["stances_exchanged"]
        stance = row["stance"] if is_exchanged is None else first_stance ^ is_exchanged
    for variant in (stance, row["swapped"]):
        number = number if variant is None else 2 * number + int(variant)
    return number


def _verdicts(row: Mapping[str, Any]) -> Iterator[tuple[int, int, bool | None]]:
    """Yield the number of each vote of a game, its verdict, and whether it is right."""
    if row["votes"] is None:
        yield 0, _code(row["decision"] if row["answer_order"] is None else row["answer"], row), row["correct"]
        return
    right = None if row["right_answers"] is None else orjson.loads(row["right_answers"])
    for number, vote in enumerate(orjson.loads(row["votes"])):
        if row["answer_order"] is None:
            yield number, _code(vote, row), None if row["y"] is None else vote == row["y"]
        else:
            yield number, _code(vote, row), None if right is None else vote in right


def _code(verdict: int | str | None, row: Mapping[str, Any]) -> int:
    """Return a verdict as a number. A listed answer is a letter of the game, whose order may differ between games."""
    if isinstance(verdict, str) and len(verdict) == 1:
        return _FIRST_ANSWER + int(orjson.loads(row["answer_order"])[ord(verdict) - ord("A")]) - 1
    return verdict if isinstance(verdict, int) else NO_VERDICT


def _probability(row: Mapping[str, Any]) -> float | None:
    """Return the probability of a verdict; None for votes, because a game has only the mean of its votes."""
    if row["votes"] is not None:
        return None
    names = ("p_right",) if row["answer_order"] is not None else ("confidence_logprob", "confidence_stated")
    return next((row[name] for name in names if row[name] is not None), None)


def _right_position(row: Mapping[str, Any]) -> int | None:
    right = [] if row["right_answers"] is None else orjson.loads(row["right_answers"])
    return ord(right[0]) - ord("A") if len(right) == 1 else None


def _answers(index: JournalIndex, sample: SampleKey) -> tuple[CallRecord | None, CallRecord | None]:
    """Return the records of the first and of the last attempt to get a verdict; None if an attempt failed."""
    record = index.get(sample)
    first = last = record if isinstance(record, CallRecord) else None
    while isinstance(record, CallRecord):
        last, sample = record, sample._replace(attempt=sample.attempt + 1)
        record = index.get(sample)
    return first, last
