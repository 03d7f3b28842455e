"""Fine-tuning jobs at OpenAI, or at a server with the same API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from runner.base.async_runner import run_sync
from runner.base.errors import TransientError
from runner.models.fine_tuning_api import ApiCallError
from runner.models.providers.client_errors import map_client_error, with_time_limit, without_secret_cause
from runner.models.providers.http_model import close_client
from runner.models.providers.openai import CLIENT_ERRORS, Client, make_client
from runner.models.providers.openai_errors import error_detail
from runner.models.providers.paid_objects import list_all, may_have_worked, require_id
from runner.models.settings import ModelSettings

T = TypeVar("T")

PAGE_SIZE = 100


class OpenAiFineTuning:
    """Manages the jobs and files of one account, with one connection per call. A failed call raises `ApiCallError`."""

    def __init__(self, settings: ModelSettings, group: str) -> None:
        self._settings, self._group = settings, group
        self._make_client()  # so that a missing key raises its error before anything is paid for

    def upload(self, dataset: Path, name: str) -> str:
        """Upload a dataset, and return the id of the file."""
        with dataset.open("rb") as data:
            size = dataset.stat().st_size
            return self._id_of(lambda client: client.files.create(file=(name, data), purpose="fine-tune"), size)

    def create_job(self, body: Mapping[str, Any]) -> str:
        """Create a job, and return its id."""
        return self._id_of(lambda client: client.fine_tuning.jobs.create(**body))

    def list_jobs(self) -> Mapping[str, object]:
        """Return all jobs of the account, by id."""
        return self._call(lambda client: list_all(client.fine_tuning.jobs.list(limit=PAGE_SIZE)))

    def retrieve_job(self, job: str) -> Any:
        """Return a job. It always has a status."""

        def check_status(job_object: Any) -> Any:
            if not isinstance(require_id(job_object).status, str):
                raise TransientError(f"{self._settings.server_label(self._group)} sent a job without a status")
            return job_object

        return self._call(lambda client: client.fine_tuning.jobs.retrieve(job), check=check_status)

    def _id_of(self, call: Callable[[Client], Coroutine[Any, Any, Any]], upload_size: int = 0) -> str:
        """Make a call that creates an object, and return the object's id."""
        return str(self._call(call, upload_size, check=require_id).id)

    def _call(
        self,
        call: Callable[[Client], Coroutine[Any, Any, T]],
        upload_size: int = 0,
        check: Callable[[T], T] = lambda result: result,
    ) -> T:
        """Make one call with a time limit, and return its result. `check` raises an error if the result is invalid."""

        async def call_with_new_client() -> T:
            client = self._make_client()
            try:
                return await with_time_limit(self._settings, call(client), upload_size)
            finally:
                await close_client(client)

        try:
            return check(run_sync(call_with_new_client))
        except TransientError as error:
            raise ApiCallError(error, status=None, detail={}, may_have_worked=True) from error
        except CLIENT_ERRORS as error:
            raise ApiCallError(
                map_client_error(error, self._settings, self._group),
                status=getattr(error, "status_code", None),
                detail=error_detail(getattr(error, "body", None)),
                may_have_worked=may_have_worked(error),
            ) from without_secret_cause(error)

    def _make_client(self) -> Client:
        return make_client(self._settings, self._group, 1)
