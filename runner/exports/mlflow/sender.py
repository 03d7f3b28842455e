"""A record into a tracking server: what the server has not, and nothing twice.

What a server has is asked for, and only the rest is sent, in an order in which a kill at any place leaves what the next
one goes on from. An MLflow run, or a model, that is made by two processes at once is left by the one that sees the
other's. A point that is sent twice at the same moment is one to MLflow, since it has the same time.
"""

from __future__ import annotations

import hashlib
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from runner.base.errors import RunError, UsageError
from runner.base.hashing import file_hash
from runner.base.text import counted
from runner.exports.mlflow.client import IS_IT, errors_of
from runner.exports.mlflow.limits import (
    MAX_DATASET_NAME,
    MAX_DIGEST,
    MAX_METRICS,
    MAX_PARAMS,
    MAX_SOURCE,
    MAX_TAG,
    MAX_TAGS,
    Fitted,
    batches,
    sent_bytes,
    shown_columns,
)
from runner.exports.mlflow.record import Data, GameTrace, MetricPoint, MlflowRun, Model, TurnSpan
from runner.exports.mlflow.run_facts import KEY_TAG, TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

PARENT, NAME = "mlflow.parentRunId", "mlflow.runName"
FILES_TAG = f"{TAG}files"
"""The tag that says which content of each artifact is there, by the start of its hash."""
TRACES_TAG = f"{TAG}traces"
"""The tag that says how many games have their trace."""
TRACES_AT_ONCE, MAX_PREVIEW = 50, 1_000
ATTEMPTS = 8
"""To make what another process makes as well."""

Made = TypeVar("Made")


class Sender:
    """Sends to one experiment of one server."""

    def __init__(self, client: MlflowClient, uri: str, experiment: str) -> None:
        """Raises:
        UsageError: the experiment was deleted.
        RunError: the server cannot be asked; see `errors_of`.
        """
        self._client, self.uri = client, uri
        self._ids: dict[str, str] = {}
        self._held: dict[str, dict[str, dict[int, float]]] = {}
        """What the server is known to have, by run, metric and step."""
        with errors_of(uri, f"open the experiment {experiment!r}"):
            self.experiment_id = self._experiment(experiment)

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self._client.get_experiment_by_name(name)
        if found is not None and not found.experiment_id:
            raise RunError(f"{self.uri} says nothing of the experiment {name!r} when asked for it; {IS_IT}")
        if found is None or found.lifecycle_stage != "active":
            which = "" if found is None else f" --experiment-id {found.experiment_id}"
            raise UsageError(
                f"the experiment {name!r} was deleted on {self.uri}; restore it there (mlflow experiments restore"
                f"{which}), or choose another --experiment"
            )
        return str(found.experiment_id)

    def page(self, run_id: str) -> str:
        """Where the server shows a run."""
        return f"{self.uri}/#/experiments/{self.experiment_id}/runs/{run_id}"

    def send(self, run: MlflowRun) -> SentParts:
        """Have the server hold a record.

        Raises:
            RunError: it cannot be asked, or refuses; see `errors_of`. What was sent is kept.
        """
        with errors_of(self.uri, f"take {run.name}"):
            sent = SentParts(self._run_of(run), Counter(), list(run.notes))
            held = self._client.get_run(sent.run_id)
            self._begin(run, held)
            self._params(run, held, sent)
            self._metrics(run, held, sent)
            self._inputs(run, held, sent)
            self._models(run, held, sent)
            self._artifacts(run, held, sent)
            self._traces(run, held, sent)
            self._tags(run, held, sent)
            self._end(run, sent)
        return sent

    # The run itself

    def _run_of(self, run: MlflowRun) -> str:
        """The id of the MLflow run, made where there is none."""
        if run.key not in self._ids:
            made = self._once(
                f"the MLflow run of {run.name}",
                lambda: self._runs(run.key),
                lambda: self._client.create_run(
                    self.experiment_id, start_time=run.started_ms, tags={KEY_TAG: run.key}, run_name=run.name
                ),
                lambda one: self._client.delete_run(one.info.run_id),
                lambda one: str(one.info.run_id),
            )
            self._ids[run.key] = made.info.run_id
        return self._ids[run.key]

    def _runs(self, key: str) -> Sequence[Run]:
        found: Sequence[Run] = self._client.search_runs([self.experiment_id], f"tags.`{KEY_TAG}` = '{key}'")
        return found

    def _once(
        self,
        what: str,
        find: Callable[[], Sequence[Made]],
        make: Callable[[], Made],
        delete: Callable[[Made], Any],
        id_of: Callable[[Made], str],
    ) -> Made:
        """What there is to be one of, found or made, by however many processes at once.

        Whoever has made one and sees another's leaves its own, and looks again.

        Raises:
            RunError: there are several.
        """
        for attempt in range(ATTEMPTS):
            found = find()
            if len(found) == 1:
                return found[0]
            if not found:
                mine = make()
                others = [one for one in find() if id_of(one) != id_of(mine)]
                if not others:
                    return mine
                delete(mine)
            time.sleep(random.uniform(0.05, 0.2) * (attempt + 1))
        ids = ", ".join(id_of(one) for one in find())
        raise RunError(f"{self.uri} has several of {what}: {ids}; delete all but one there, and send again")

    def _begin(self, run: MlflowRun, held: Run) -> None:
        if run.status == "RUNNING" and held.info.status != "RUNNING":  # it was stopped, and goes on
            self._client.update_run(held.info.run_id, status="RUNNING")

    def _end(self, run: MlflowRun, sent: SentParts) -> None:
        """Say how the run ended, once all of it is there."""
        held = self._client.get_run(sent.run_id).info
        if run.status == "RUNNING" or (held.status == run.status and run.ended_ms in (None, held.end_time)):
            return
        self._client.set_terminated(sent.run_id, run.status, run.ended_ms)
        sent.counts["status"] += 1

    # What it holds

    def _params(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        from mlflow.entities import Param

        known: Mapping[str, str] = held.data.params
        for key, value in run.params.items():
            if key in known and known[key] != value:
                sent.notes.append(
                    f"the parameter {key} was {known[key][:80]!r} when it was first sent, and stays so: MLflow changes "
                    f"none; by now it is {value[:80]!r}, and the artifact spec.yaml says so"
                )
        missing = [Param(key, value) for key, value in run.params.items() if key not in known]
        for batch in batches(missing, MAX_PARAMS, lambda one: sent_bytes(one.key, one.value)):
            self._client.log_batch(sent.run_id, params=batch)
            sent.counts["parameter"] += len(batch)

    def _metrics(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        from mlflow.entities import Metric

        known = self._held.setdefault(sent.run_id, {})
        for key in {point.key for point in run.metrics} & held.data.metrics.keys() - known.keys():
            known[key] = {one.step: one.value for one in self._client.get_metric_history(sent.run_id, key)}
        others = [point for point in run.metrics if _is_other(point, known)]
        if others:
            first = others[0]
            sent.notes.append(
                f"{counted(len(others), 'point')} of metrics have another value by now (such as {first.key} at step "
                f"{first.step}), as of a run that was made longer; they stay: MLflow changes none. metrics.json is new"
            )
        missing = [point for point in run.metrics if point.step not in known.get(point.key, {})]
        for batch in batches(missing, MAX_METRICS, lambda one: sent_bytes(one.key)):
            metrics = [Metric(point.key, point.value, point.time_ms or run.started_ms, point.step) for point in batch]
            self._client.log_batch(sent.run_id, metrics=metrics)
            for point in batch:
                known.setdefault(point.key, {})[point.step] = point.value
            sent.counts["point"] += len(batch)

    def _inputs(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        from mlflow.entities import DatasetInput, InputTag, LoggedModelInput

        known = {(one.dataset.name, one.dataset.digest) for one in held.inputs.dataset_inputs}
        fitted = Fitted()
        new = []
        for data in run.inputs:
            dataset = _dataset(data, fitted)
            if (dataset.name, dataset.digest) not in known:
                known.add((dataset.name, dataset.digest))
                new.append(DatasetInput(dataset, [InputTag("mlflow.data.context", data.context)]))
        for one in new:
            self._client.log_inputs(sent.run_id, datasets=[one])
            sent.counts["dataset"] += 1
        played = {one.model_id for one in held.inputs.model_inputs}
        for key in run.plays_with:
            for model in self._logged_models(key):
                if model.model_id not in played:
                    self._client.log_inputs(sent.run_id, models=[LoggedModelInput(model.model_id)])
                    sent.counts["trained player"] += 1

    def _models(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        from mlflow.entities import LoggedModelOutput

        outputs = {one.model_id for one in held.outputs.model_outputs} if held.outputs is not None else set()
        for model in run.models:
            logged = self._logged(model, sent.run_id)
            if str(logged.status) != "READY":
                self._client.finalize_logged_model(logged.model_id, "READY")
            if logged.model_id not in outputs:
                self._client.log_outputs(sent.run_id, [LoggedModelOutput(logged.model_id, model.step)])
                sent.counts["model"] += 1

    def _logged(self, model: Model, run_id: str) -> LoggedModel:
        return self._once(
            f"the model {model.name}",
            lambda: self._logged_models(model.key),
            lambda: self._client.create_logged_model(
                self.experiment_id, model.name, run_id, dict(model.tags), dict(model.params), "agent"
            ),
            lambda one: self._client.delete_logged_model(one.model_id),
            lambda one: str(one.model_id),
        )

    def _logged_models(self, key: str) -> Sequence[LoggedModel]:
        found: Sequence[LoggedModel] = self._client.search_logged_models(
            [self.experiment_id], filter_string=f"tags.`{KEY_TAG}` = '{key}'"
        )
        return found

    def _artifacts(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        """Each file whose content the run has not; the tag that says so follows each."""
        known: dict[str, str] = {}
        with suppress(ValueError):
            known = orjson.loads(held.data.tags.get(FILES_TAG, "{}"))
        for path, name in run.artifacts:
            sha256 = file_hash(path)[:16]
            if known.get(name) == sha256:
                continue
            folder = name.rpartition("/")[0]
            self._client.log_artifact(sent.run_id, str(path), folder or None)
            sent.counts["file"] += 1
            text = orjson.dumps({**known, name: sha256}).decode()
            if len(text) <= MAX_TAG:
                known[name] = sha256
                self._client.set_tag(sent.run_id, FILES_TAG, text)

    def _traces(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        """Send the traces of games that the run has none of; a tag counts those it has, and one sent again is one."""
        from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState
        from mlflow.tracing.client import TracingClient

        client = TracingClient(self.uri)
        known = int(held.data.tags.get(TRACES_TAG, "0"))
        for number, trace in enumerate(run.traces(), 1):
            if number <= known:
                continue
            spans = list(_spans(trace, run.started_ms))
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
                sent.notes.append(f"no traces: {error}")
                return
            sent.counts["trace"] += 1
            if number % TRACES_AT_ONCE == 0:
                self._client.set_tag(sent.run_id, TRACES_TAG, str(number))
        if sent.counts["trace"]:
            self._client.set_tag(sent.run_id, TRACES_TAG, str(known + sent.counts["trace"]))

    def _tags(self, run: MlflowRun, held: Run, sent: SentParts) -> None:
        from mlflow.entities import RunTag

        wanted = {**run.tags, NAME: run.name}
        parent = None if run.parent is None else self._found(run.parent)
        if parent is not None:
            wanted[PARENT] = parent
        elif run.parent is not None:
            sent.notes.append("its training run is not there yet: export that, and this one stands below it")
        new = [RunTag(key, value) for key, value in wanted.items() if held.data.tags.get(key) != value]
        for batch in batches(new, MAX_TAGS, lambda one: sent_bytes(one.key, one.value)):
            self._client.log_batch(sent.run_id, tags=batch)
            sent.counts["tag"] += len(batch)

    def _found(self, key: str) -> str | None:
        """The id of another run, where the server has it."""
        if key not in self._ids:
            found = self._runs(key)
            if len(found) != 1:
                return None
            self._ids[key] = found[0].info.run_id
        return self._ids[key]


class SentParts:
    """What was sent of a run: nothing where the server had all of it."""

    def __init__(self, run_id: str, counts: Counter[str], notes: list[str]) -> None:
        self.run_id, self.counts, self.notes = run_id, counts, notes


def _is_other(point: MetricPoint, known: Mapping[str, Mapping[int, float]]) -> bool:
    held = known.get(point.key, {}).get(point.step)
    return held is not None and abs(held - point.value) > 1e-9 * max(1.0, abs(point.value))


def _spans(trace: GameTrace, started_ms: int) -> Iterator[dict[str, Any]]:
    """The spans of a game as MLflow's own dictionaries: the game's, then one for each turn below it."""
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


def _base64(digits: str) -> str:
    return b64encode(bytes.fromhex(digits)).decode()


def _dataset(data: Data, fitted: Fitted) -> Any:
    """MLflow's own form of a dataset; its digest is the start of ours, which is whole in the source."""
    from mlflow.entities import Dataset

    source = fitted.text(orjson.dumps({"tags": data.facts}).decode())
    if len(source) > MAX_SOURCE:
        hashed = hashlib.sha256(source.encode()).hexdigest()
        source = orjson.dumps({"tags": {"sha256": data.sha256, "facts_sha256": hashed}}).decode()
    return Dataset(
        name=fitted.text(data.name)[:MAX_DATASET_NAME],
        digest=data.sha256[:MAX_DIGEST],
        source_type="code",
        source=source,
        schema=shown_columns(map(fitted.text, data.columns)) if data.columns else None,
        profile=None if data.rows is None else orjson.dumps({"num_rows": data.rows}).decode(),
    )
