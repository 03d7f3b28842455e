"""Sends a record to a tracking server: only the parts that the server lacks, and nothing twice.

The sender first reads which parts the server has, and so continues after an interruption at any point. If two processes
create the same MLflow run or model at once, the process that sees the other's copy deletes its own. If two processes
send the same point, both send the same time, and MLflow stores the point once.
"""

from __future__ import annotations

import hashlib
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from runner.base.batches import batches
from runner.base.errors import RunError, UsageError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.text import counted
from runner.exports.mlflow.assessments import UNIT
from runner.exports.mlflow.client import SERVER_HINT, convert_errors
from runner.exports.mlflow.limits import (
    MAX_BYTES,
    MAX_DATASET_NAME,
    MAX_DIGEST,
    MAX_METRICS,
    MAX_PARAMS,
    MAX_SOURCE,
    MAX_TAG,
    MAX_TAGS,
    MlflowTexts,
    schema_columns,
    sent_bytes,
)
from runner.exports.mlflow.record import (
    AssessmentRecord,
    DatasetRecord,
    GameTrace,
    MetricPoint,
    MlflowRun,
    ModelRecord,
    TurnSpan,
)
from runner.exports.mlflow.run_facts import KEY_TAG, TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Assessment, LoggedModel, Run

PARENT_TAG, NAME_TAG = "mlflow.parentRunId", "mlflow.runName"
FILES_TAG = f"{TAG}files"
"""The tag with the first digits of each sent artifact's hash, by the artifact's name."""
MAX_CONFLICTS = 20
"""How often a record is sent again because another process sends the same one."""
TRACES_TAG = f"{TAG}traces"
"""The tag with the number of games whose traces were sent, and a hash of these games.

If a run is extended by datapoints, its games have other positions. Then the hash differs, and all traces are sent.
"""
ASSESSMENTS_TAG = f"{TAG}assessments"
"""The tag with a hash of the assessments that were sent."""
TRACES_PER_UPDATE = 50
"""Number of traces that are sent before `TRACES_TAG` is updated."""
MAX_PREVIEW = 1_000
"""Maximum number of characters of a trace's input or output in MLflow's list."""
ATTEMPTS = 8
"""Maximum attempts to create a run or model that another process may be creating at the same time."""

Item = TypeVar("Item")


class Sender:
    """Sends records to one experiment of one server."""

    def __init__(self, client: MlflowClient, uri: str, experiment: str) -> None:
        """Find or create the experiment.

        Raises:
            UsageError: the experiment was deleted.
            RunError: the server cannot be reached; see `convert_errors`.
        """
        self._client, self.uri = client, uri
        self._ids: dict[str, str] = {}
        self._values: dict[str, dict[str, dict[int, float]]] = {}
        """Metric values that the server has, by run, metric and step."""
        with convert_errors(uri, f"open the experiment {experiment!r}"):
            self.experiment_id = self._find_or_create_experiment(experiment)

    def _find_or_create_experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = self._client.get_experiment_by_name(name)
        if experiment is not None and not experiment.experiment_id:
            raise RunError(f"{self.uri} returned no data about the experiment {name!r}; {SERVER_HINT}")
        if experiment is None or experiment.lifecycle_stage != "active":
            id_option = "" if experiment is None else f" --experiment-id {experiment.experiment_id}"
            raise UsageError(
                f"the experiment {name!r} was deleted on {self.uri}; restore it there (mlflow experiments restore"
                f"{id_option}), or choose another --experiment"
            )
        return str(experiment.experiment_id)

    def page_url(self, run_id: str) -> str:
        """Return the URL of a run's page on the server."""
        return f"{self.uri}/#/experiments/{self.experiment_id}/runs/{run_id}"

    def send(self, run: MlflowRun) -> SentParts:
        """Send the parts of a record that the server lacks.

        Raises:
            RunError: the server cannot be reached, or refuses; see `convert_errors`. It has the data sent so far.
        """
        counts = Counter[str]()
        with convert_errors(self.uri, f"accept {run.name}"):
            for _ in range(MAX_CONFLICTS):
                with _suppress_conflicts():
                    return self._send_missing_parts(run, counts)
            return self._send_missing_parts(run, counts)

    def _send_missing_parts(self, run: MlflowRun, counts: Counter[str]) -> SentParts:
        sent = SentParts(self._ensure_run(run), counts, list(run.notes))
        stored = self._client.get_run(sent.run_id)
        self._mark_running(run, stored)
        self._send_params(run, stored, sent)
        self._send_metrics(run, stored, sent)
        self._send_inputs(run, stored, sent)
        self._send_models(run, stored, sent)
        self._send_artifacts(run, stored, sent)
        self._send_traces(run, stored, sent)
        self._send_assessments(run, stored, sent)
        self._send_tags(run, stored, sent)
        self._set_final_status(run, sent)
        return sent

    # The run itself

    def _ensure_run(self, run: MlflowRun) -> str:
        """Return the id of the MLflow run with the key of `run`. If there is no such MLflow run, create one."""
        if run.key not in self._ids:
            mlflow_run = self._find_or_create(
                f"the MLflow run of {run.name}",
                lambda: self._find_runs(run.key),
                lambda: self._client.create_run(
                    self.experiment_id, start_time=run.started_ms, tags={KEY_TAG: run.key}, run_name=run.name
                ),
                lambda candidate: self._client.delete_run(candidate.info.run_id),
                lambda candidate: str(candidate.info.run_id),
            )
            self._ids[run.key] = mlflow_run.info.run_id
        return self._ids[run.key]

    def _find_runs(self, key: str) -> Sequence[Run]:
        runs: Sequence[Run] = self._client.search_runs([self.experiment_id], f"tags.`{KEY_TAG}` = '{key}'")
        return runs

    def _find_or_create(
        self,
        description: str,
        find: Callable[[], Sequence[Item]],
        create: Callable[[], Item],
        delete: Callable[[Item], Any],
        id_of: Callable[[Item], str],
    ) -> Item:
        """Find or create an item that must exist only once, although several processes may try at the same time.

        If a process sees another item after it has created its own, it deletes its own item and searches again.

        Raises:
            RunError: the server has several copies of the item.
        """
        for attempt in range(ATTEMPTS):
            items = find()
            if len(items) == 1:
                return items[0]
            if not items:
                created = create()
                other_items = [item for item in find() if id_of(item) != id_of(created)]
                if not other_items:
                    return created
                delete(created)
            time.sleep(random.uniform(0.05, 0.2) * (attempt + 1))
        ids = ", ".join(id_of(item) for item in find())
        raise RunError(
            f"{self.uri} has several copies of {description}: {ids}; delete all except one in MLflow, then repeat the "
            "command"
        )

    def _mark_running(self, run: MlflowRun, stored: Run) -> None:
        if run.status == "RUNNING" and stored.info.status != "RUNNING":  # stopped, then resumed
            self._client.update_run(stored.info.run_id, status="RUNNING")

    def _set_final_status(self, run: MlflowRun, sent: SentParts) -> None:
        """Set the run's final status, after all other parts have been sent."""
        stored = self._client.get_run(sent.run_id).info
        if run.status == "RUNNING" or (stored.status == run.status and run.ended_ms in (None, stored.end_time)):
            return
        self._client.set_terminated(sent.run_id, run.status, run.ended_ms)
        sent.counts["status"] += 1

    # The content of the run

    def _send_params(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        from mlflow.entities import Param

        stored_params: Mapping[str, str] = stored.data.params
        for key, value in run.params.items():
            if key in stored_params and stored_params[key] != value:
                sent.notes.append(
                    f"MLflow still shows the parameter {key} as {stored_params[key][:80]!r}, because it cannot change "
                    f"parameters; the current value is {value[:80]!r} (see the artifact spec.yaml)"
                )
        missing = [Param(key, value) for key, value in run.params.items() if key not in stored_params]
        for batch in batches(missing, MAX_PARAMS, MAX_BYTES, lambda param: sent_bytes(param.key, param.value)):
            self._client.log_batch(sent.run_id, params=batch)
            sent.counts["parameter"] += len(batch)

    def _send_metrics(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        from mlflow.entities import Metric

        values = self._values.setdefault(sent.run_id, {})
        for key in {point.key for point in run.metrics} & stored.data.metrics.keys() - values.keys():
            values[key] = {point.step: point.value for point in self._client.get_metric_history(sent.run_id, key)}
        changed_points = [point for point in run.metrics if _has_other_value(point, values)]
        if changed_points:
            first = changed_points[0]
            sent.notes.append(
                f"MLflow still shows old values for {counted(len(changed_points), 'point')} of metrics (such as "
                f"{first.key} at step {first.step}), because it cannot change them; the artifact metrics.json has the "
                "current values"
            )
        missing = [point for point in run.metrics if point.step not in values.get(point.key, {})]
        for batch in batches(missing, MAX_METRICS, MAX_BYTES, lambda point: sent_bytes(point.key)):
            metrics = [Metric(point.key, point.value, point.time_ms or run.started_ms, point.step) for point in batch]
            self._client.log_batch(sent.run_id, metrics=metrics)
            for point in batch:
                values.setdefault(point.key, {})[point.step] = point.value
            sent.counts["point"] += len(batch)

    def _send_inputs(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        from mlflow.entities import DatasetInput, InputTag, LoggedModelInput

        stored_datasets = {(entry.dataset.name, entry.dataset.digest) for entry in stored.inputs.dataset_inputs}
        texts = MlflowTexts()
        new = []
        for data in run.inputs:
            dataset = _to_mlflow_dataset(data, texts)
            if (dataset.name, dataset.digest) not in stored_datasets:
                stored_datasets.add((dataset.name, dataset.digest))
                new.append(DatasetInput(dataset, [InputTag("mlflow.data.context", data.context)]))
        for entry in new:
            self._client.log_inputs(sent.run_id, datasets=[entry])
            sent.counts["dataset"] += 1
        stored_models = {entry.model_id for entry in stored.inputs.model_inputs}
        for key in run.plays_with:
            for model in self._find_models(key):
                if model.model_id not in stored_models:
                    self._client.log_inputs(sent.run_id, models=[LoggedModelInput(model.model_id)])
                    sent.counts["trained player"] += 1

    def _send_models(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        from mlflow.entities import LoggedModelOutput

        stored_outputs = (
            {output.model_id for output in stored.outputs.model_outputs} if stored.outputs is not None else set()
        )
        for model in run.models:
            logged = self._ensure_model(model, sent.run_id)
            if str(logged.status) != "READY":
                self._client.finalize_logged_model(logged.model_id, "READY")
            if logged.model_id not in stored_outputs:
                self._client.log_outputs(sent.run_id, [LoggedModelOutput(logged.model_id, model.step)])
                sent.counts["model"] += 1

    def _ensure_model(self, model: ModelRecord, run_id: str) -> LoggedModel:
        return self._find_or_create(
            f"the model {model.name}",
            lambda: self._find_models(model.key),
            lambda: self._client.create_logged_model(
                self.experiment_id, model.name, run_id, dict(model.tags), dict(model.params), "agent"
            ),
            lambda candidate: self._client.delete_logged_model(candidate.model_id),
            lambda candidate: str(candidate.model_id),
        )

    def _find_models(self, key: str) -> Sequence[LoggedModel]:
        models: Sequence[LoggedModel] = self._client.search_logged_models(
            [self.experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{key}'"
        )
        return models

    def _send_artifacts(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        """Send each file whose content the server lacks. After each file, record its hash in the tag `FILES_TAG`."""
        stored_hashes: dict[str, str] = {}
        with suppress(ValueError):
            stored_hashes = orjson.loads(stored.data.tags.get(FILES_TAG, "{}"))
        for path, name in run.artifacts:
            sha256 = file_hash(path)[:16]
            if stored_hashes.get(name) == sha256:
                continue
            folder = name.rpartition("/")[0]
            self._client.log_artifact(sent.run_id, str(path), folder or None)
            sent.counts["file"] += 1
            text = orjson.dumps({**stored_hashes, name: sha256}).decode()
            if len(text) <= MAX_TAG:
                stored_hashes[name] = sha256
                self._client.set_tag(sent.run_id, FILES_TAG, text)

    def _send_traces(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        """Send the traces that the server lacks. MLflow stores a trace that is sent twice once."""
        from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState
        from mlflow.tracing.client import TracingClient

        client = TracingClient(self.uri)
        keys, traces = _skip_sent_traces(run, stored.data.tags.get(TRACES_TAG, "0"))
        for trace in traces:
            spans = list(_build_spans(trace, run.started_ms))
            start, end = spans[0]["start_time_unix_nano"], spans[0]["end_time_unix_nano"]
            info = TraceInfo(
                f"tr-{trace.key}",
                TraceLocation.from_experiment_id(self.experiment_id),
                start // 1_000_000,
                TraceState.ERROR if trace.is_lost else TraceState.OK,
                request_preview=trace.inputs[:MAX_PREVIEW],
                response_preview=trace.outputs[:MAX_PREVIEW],
                client_request_id=trace.name,
                execution_duration=(end - start) // 1_000_000,
                trace_metadata={"mlflow.sourceRun": sent.run_id},
                tags={**trace.tags, "mlflow.traceName": trace.name},
            )
            try:
                client.start_trace(info)
                client.log_spans(self.experiment_id, [Span.from_dict(span) for span in spans])
            except NotImplementedError as error:
                sent.notes.append(f"this MLflow server does not support traces; update MLflow there ({error})")
                return
            sent.counts["trace"] += 1
            keys.append(trace.key)
            if len(keys) % TRACES_PER_UPDATE == 0:
                self._client.set_tag(sent.run_id, TRACES_TAG, _format_traces_tag(keys))
        if sent.counts["trace"]:
            self._client.set_tag(sent.run_id, TRACES_TAG, _format_traces_tag(keys))

    def _send_assessments(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        """Send the assessments that the server lacks. `ASSESSMENTS_TAG` has a hash of all that were sent."""
        from mlflow.exceptions import MlflowException
        from mlflow.tracing.client import TracingClient

        records = list(run.assessments())
        sha256 = tagged_hash("mlflow assessments", [record._asdict() for record in records])
        if not records or stored.data.tags.get(ASSESSMENTS_TAG) == sha256:
            return
        client, missing = TracingClient(self.uri), 0
        for trace, group in groupby(sorted(records, key=lambda record: record.trace), lambda record: record.trace):
            try:
                stored_keys = set(map(_assessment_key, client.get_trace_info(f"tr-{trace}").assessments))
                new = [item for item in map(_to_assessment, group) if _assessment_key(item) not in stored_keys]
                for assessment in new:
                    client.log_assessment(f"tr-{trace}", assessment)
                    sent.counts["assessment"] += 1
            except NotImplementedError as error:
                sent.notes.append(f"this MLflow server does not support assessments; update MLflow there ({error})")
                return
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                missing += 1
        if missing:
            sent.notes.append(f"{counted(missing, 'game')} without a trace, so that its assessments cannot be sent")
        self._client.set_tag(sent.run_id, ASSESSMENTS_TAG, sha256)

    def _send_tags(self, run: MlflowRun, stored: Run, sent: SentParts) -> None:
        from mlflow.entities import RunTag

        tags = {**run.tags, NAME_TAG: run.name}
        parent = None if run.parent is None else self._find_run_id(run.parent)
        if parent is not None:
            tags[PARENT_TAG] = parent
        elif run.parent is not None:
            sent.notes.append(f"{run.name} is not nested below its training run; export the training run, too")
        new = [RunTag(key, value) for key, value in tags.items() if stored.data.tags.get(key) != value]
        for batch in batches(new, MAX_TAGS, MAX_BYTES, lambda tag: sent_bytes(tag.key, tag.value)):
            self._client.log_batch(sent.run_id, tags=batch)
            sent.counts["tag"] += len(batch)

    def _find_run_id(self, key: str) -> str | None:
        """Return the id of another run, or None if the server does not have exactly one."""
        if key not in self._ids:
            runs = self._find_runs(key)
            if len(runs) != 1:
                return None
            self._ids[key] = runs[0].info.run_id
        return self._ids[key]


class SentParts(NamedTuple):
    """The items of one run that were sent. `counts` has their number by kind: none if the server had all of them."""

    run_id: str
    """The id of the MLflow run."""
    counts: Counter[str]
    notes: list[str]


@contextmanager
def _suppress_conflicts() -> Iterator[None]:
    """Suppress MLflow's error if two clients store the same parameter, input or model at the same time."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if "IntegrityError" not in str(error):
            raise


def _has_other_value(point: MetricPoint, values: Mapping[str, Mapping[int, float]]) -> bool:
    stored = values.get(point.key, {}).get(point.step)
    return stored is not None and abs(stored - point.value) > 1e-9 * max(1.0, abs(point.value))


def _skip_sent_traces(run: MlflowRun, tag: str) -> tuple[list[str], Iterator[GameTrace]]:
    """Return the keys of the first traces, if they are those of the tag, and the traces after them."""
    traces = iter(run.traces())
    keys = [trace.key for trace in islice(traces, int(tag.split(maxsplit=1)[0]))]
    return (keys, traces) if _format_traces_tag(keys) == tag else ([], iter(run.traces()))


def _format_traces_tag(keys: Sequence[str]) -> str:
    return f"{len(keys)} {tagged_hash('mlflow traces', keys)[:16]}"


def _build_spans(trace: GameTrace, started_ms: int) -> Iterator[dict[str, Any]]:
    """Yield MLflow's dictionaries for the spans of a game: the game's span, then a child span for each turn."""
    first = min((span.start_ns for span in trace.spans), default=started_ms * 1_000_000)
    last = max((span.end_ns for span in trace.spans), default=first)
    game = TurnSpan(trace.name, first, last, trace.inputs, trace.outputs)
    for number, span in enumerate((game, *trace.spans)):
        yield {
            "trace_id": _base64(trace.key),
            "span_id": _base64(f"{number + 1:016x}"),
            "parent_span_id": _base64(f"{1:016x}") if number else "",
            "name": span.name,
            "start_time_unix_nano": span.start_ns,
            "end_time_unix_nano": span.end_ns,
            "status": {"code": "STATUS_CODE_ERROR" if trace.is_lost and not number else "STATUS_CODE_OK"},
            "attributes": {
                "mlflow.traceRequestId": orjson.dumps(f"tr-{trace.key}").decode(),
                "mlflow.spanType": '"CHAT_MODEL"' if number else '"CHAIN"',
                "mlflow.spanInputs": span.inputs,
                "mlflow.spanOutputs": span.outputs,
            },
        }


def _to_assessment(record: AssessmentRecord) -> Assessment:
    from mlflow.entities import AssessmentSource, Feedback

    return Feedback(
        name=record.name, value=record.value, error=record.error, rationale=record.rationale,
        source=AssessmentSource(record.source_type, record.source), metadata=dict(record.metadata),
    )  # fmt: skip


def _assessment_key(assessment: Assessment) -> tuple[Any, ...]:
    """Return what distinguishes an assessment from the others of its trace."""
    value = None if assessment.feedback is None else assessment.feedback.value
    return assessment.name, assessment.source.source_id, (assessment.metadata or {}).get(UNIT), value


def _base64(digits: str) -> str:
    return b64encode(bytes.fromhex(digits)).decode()


def _to_mlflow_dataset(data: DatasetRecord, texts: MlflowTexts) -> Any:
    """Return an MLflow dataset. Its digest is the start of the dataset's SHA-256; `source` has the complete hash."""
    from mlflow.entities import Dataset

    source = texts.text(orjson.dumps({"tags": data.facts}).decode())
    if len(source) > MAX_SOURCE:
        facts_sha256 = hashlib.sha256(source.encode()).hexdigest()
        source = orjson.dumps({"tags": {"sha256": data.sha256, "facts_sha256": facts_sha256}}).decode()
    return Dataset(
        name=texts.text(data.name)[:MAX_DATASET_NAME],
        digest=data.sha256[:MAX_DIGEST],
        source_type="code",
        source=source,
        schema=schema_columns(map(texts.text, data.columns)) if data.columns else None,
        profile=None if data.rows is None else orjson.dumps({"num_rows": data.rows}).decode(),
    )
