"""Not built yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from runner.errors import UsageError
from runner.releases.bundle import Content
from runner.transports.base import Added, Stored


class HubTransport:
    def __init__(self, place: str, *, pull_request: bool = False) -> None:
        raise UsageError(f"no registry can be at hf:{place} yet ({pull_request})")

    @property
    def where(self) -> str:
        raise NotImplementedError

    def stored(self, prefix: str = "") -> Iterator[Stored]:
        raise NotImplementedError

    def open(self, path: str) -> IO[bytes]:
        raise NotImplementedError

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> Added:
        raise NotImplementedError

    def close(self) -> None: ...
