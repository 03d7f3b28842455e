"""`huggingface_hub` as a registry uses it, and what goes wrong there in words: what, where, and what to do."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runner.base.errors import NipRunError, NotPublished, ReleaseError, UsageError
from runner.base.redaction import current_redactor, remember
from runner.registry.transports.hub.http import HubClient, HubFault, HubFile
from runner.registry.transports.timeouts import Timeouts
from runner.version import __version__

_CONFLICT = (409, 412)
_LOOPBACK = re.compile(r"http://(127(\.[0-9]+){3}|localhost|\[::1\])(:[0-9]+)?")


class RepositoryNotFound(ReleaseError):
    """There is no such repository, or none that may be seen."""


class HubSession:
    """One repository, at the endpoint of `HF_ENDPOINT`, with the token of `HF_TOKEN` or of `hf auth login`."""

    _factory_of: tuple[str, Timeouts] | None = None
    """For whom the session of `huggingface_hub` is, of which a process has one."""
    _users = 0
    """How many are open and use it."""
    _lock = threading.Lock()

    def __init__(self, where: str, repository: str, patience: Timeouts) -> None:
        self._where, self._repository, self._patience = where, repository, patience
        self._hub = _library()
        self.endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or self._hub.constants.ENDPOINT
        if not (self.endpoint.startswith("https://") or _LOOPBACK.fullmatch(self.endpoint)):
            raise UsageError(f"HF_ENDPOINT is {self.endpoint!r}; it must begin with https://")
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise ReleaseError(f"{where} cannot be reached: HF_HUB_OFFLINE is set; take it away")
        token = self._hub.get_token()
        self.has_token = token is not None
        if token is not None:
            remember(token)  # no error that a server writes shows it
        self.api = self._hub.HfApi(
            endpoint=self.endpoint, token=token or False, library_name="nip-run", library_version=__version__
        )
        self._closed = False
        with HubSession._lock:
            HubSession._users += 1

    def newest(self, revision: str) -> tuple[str, bool]:
        """The commit of a revision now, and whether the repository is private.

        Raises:
            Missing: there is no such repository, or none that may be seen.
            ReleaseError: it has no such revision, or does not answer.
        """
        with self.asked("look up its newest commit"):
            info = self.api.dataset_info(self._repository, revision=revision)
            if not isinstance(info.sha, str) or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
                raise ValueError(f"its commit is {str(info.sha)[:60]!r}")
            return info.sha, bool(info.private)

    def file(self, path: str, commit: str) -> HubFile:
        """A file at a commit, to be read as it arrives. To be called where it is `asked`."""
        url = self._hub.hf_hub_url(self._repository, path, repo_type="dataset", revision=commit, endpoint=self.endpoint)
        response = self._client.file(
            url,
            self._hub.utils.build_hf_headers(token=self.api.token, library_name="nip-run", library_version=__version__),
        )
        try:
            self._hub.utils.hf_raise_for_status(response)
        except BaseException:
            response.close()
            raise
        return HubFile(response)

    @property
    def _client(self) -> HubClient:
        client = self._hub.get_session()
        assert isinstance(client, HubClient)
        return client

    def addition(self, path: str, content: io.BufferedIOBase) -> Any:
        """A file of a commit. As it is no path, it goes by HTTP through our session, whatever else is installed."""
        return self._hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)

    def unless_conflict(self, commit: Callable[[], Any]) -> Any:
        """What a commit gives; None where it is not onto the newest one any more."""
        try:
            return commit()
        except self._hub.errors.HfHubHTTPError as error:
            if error.response.status_code in _CONFLICT:
                return None
            raise

    @contextmanager
    def asked(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside is said in words of ours.

        Raises:
            NotPublished: there is no such file.
            Missing: there is no such repository, or none that may be seen.
            ReleaseError: everything else.
        """
        self._use()
        self._client.question.requests = 0
        try:
            yield
        except (NipRunError, GeneratorExit):
            raise
        except HubFault as fault:
            raise ReleaseError(self._said(what, str(fault))) from fault
        except self._hub.errors.HfHubHTTPError as error:
            raise self._refused(what, error) from error
        except Exception as error:  # of all kinds, where an answer has another shape than the library knows
            cause = error.__cause__  # of an upload
            if isinstance(cause, self._hub.errors.HfHubHTTPError):
                raise self._refused(what, cause) from error
            if isinstance(cause, HubFault | OSError):
                raise ReleaseError(self._said(what, str(cause))) from error
            why = f"{type(error).__name__}: {str(error)[:300]}"
            raise ReleaseError(self._said(what, f"it does not answer as the Hub does ({why})")) from error

    def _use(self) -> None:
        with HubSession._lock:
            if HubSession._factory_of != (self.endpoint, self._patience):
                self._hub.set_client_factory(lambda: HubClient(self.endpoint, self._patience))
                HubSession._factory_of = (self.endpoint, self._patience)

    def _said(self, what: str, message: str) -> str:
        return f"{self._where}: cannot {what}: {current_redactor().text(' '.join(message.split()))}"

    def _refused(self, what: str, error: Any) -> ReleaseError:
        """What a status means here."""
        errors, status = self._hub.errors, error.response.status_code
        page = f"{self.endpoint}/datasets/{self._repository}"
        said = f" ({error.server_message[:300]})" if error.server_message else ""
        token = "the token may do so" if self.has_token else "HF_TOKEN is set, or `hf auth login` was run"
        kind: type[ReleaseError] = ReleaseError
        if isinstance(error, errors.GatedRepoError):
            message = f"it is gated{said}; ask for access at {page}, and see that {token}"
        elif isinstance(error, errors.RevisionNotFoundError):
            message = "it has no such branch, tag or commit; look at what stands behind @"
        elif isinstance(error, errors.EntryNotFoundError):
            kind, message = NotPublished, "there is no such file"
        elif isinstance(error, errors.RepositoryNotFoundError) or (status in (401, 404) and not self.has_token):
            kind = RepositoryNotFound
            message = f"there is no dataset repository {page}, or it is private; look at its name, and see that {token}"
        elif status == 401:
            message = f"the token is refused (HTTP 401){said}; give another one in HF_TOKEN, or run `hf auth login`"
        elif status == 403:
            message = f"that is not allowed (HTTP 403){said}; see that {token}"
        else:
            message = f"HTTP {status}{said}"
        return kind(self._said(what, message))

    def close(self) -> None:
        """Let go of the connections, unless somebody else in this process uses them."""
        with HubSession._lock:
            HubSession._users -= not self._closed
            self._closed = True
            if HubSession._users == 0:
                self._hub.close_session()


def _library() -> Any:
    """`huggingface_hub`, which says nothing by itself, to nobody.

    Raises:
        UsageError: it is not installed.
    """
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when it is imported
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise UsageError(f"hf: needs the package huggingface_hub ({error}); pip install 'nip-run[hf]'") from error
    library: Any = huggingface_hub
    library.utils.logging.set_verbosity(logging.CRITICAL)
    library.utils.disable_progress_bars()
    return library
