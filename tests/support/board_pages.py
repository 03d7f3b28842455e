"""Rows of registry boards, and the pages of boards."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from typing import Any

from runner.pages.boards.lists import BoardPage, published_board
from runner.pages.boards.page import board_site
from runner.pages.site import as_one_file
from runner.registry.board.board import PublishedRow, RegistryBoard

_DEFAULTS: dict[str, Any] = {
    "benchmark": "tiny/v1", "run_id": "tiny-1", "name": "tiny", "protocol": "nip", "accuracy": 0.5, "ci_low": 0.4,
    "ci_high": 0.6, "stderr": 0.05, "n": 96, "clusters": 48, "outcomes": '{"decided": 94, "no_decision": 2}',
    "models": "prover=small, verifier=large", "cost_usd": 0.25, "finished_at": datetime(2026, 1, 2, 3, 4),  # noqa: DTZ001 - the board's are UTC
    "started_at": datetime(2026, 1, 2, 3, 0), "spec_sha256": "5" * 64, "dataset_sha256": "d" * 64,  # noqa: DTZ001 - as above
    "game_sha256": "e" * 64, "version": "0.2.0", "rank": 1, "rank_last": 1, "reason": None, "list": 1, "task": "a" * 64,
    "status": "done", "failures": 0, "seed": 7, "point": None, "split": None, "limit": None, "filter": None,
    "group_by": None, "per_datapoint": 1, "replay_of": None, "rejudge_of": None, "no_decision": 2, "stopped": None,
    "release": "run/acme/tiny@1", "release_sha256": "f" * 64, "owner": "acme", "signed": False, "tier": "self-reported",
    "numbers": "recomputed from its records", "effort": {"rollouts": 0, "at_least": []}, "marks": [],
    "earlier_task": None, "trained_on": None, "lineage": [], "transport_failed": 0,
    "invalid_response": 0, "refused": 0, "context_exceeded": 0, "shared_with": None, "shared": None,
}  # fmt: skip


def board_row(**changes: Any) -> PublishedRow:
    """Return a row of a registry's board with these changes."""
    assert changes.keys() <= _DEFAULTS.keys()
    return PublishedRow(**{**_DEFAULTS, **changes})


def build_board(*rows: PublishedRow, **of_board: Any) -> BoardPage:
    return published_board(RegistryBoard("file:there", list(rows), **of_board))


def render_board(board: BoardPage, *runs: str) -> bytes:
    """Render a board as one HTML file."""
    data: dict[str, bytes] = {}
    return b"".join(as_one_file(board_site(board, data.__setitem__, runs), data))


def read_page_rows(board: BoardPage) -> list[dict[str, Any]]:
    """Return the rows that the script of a board's page reads, of all lists in order."""
    data: dict[str, bytes] = {}
    board_site(board, data.__setitem__)
    rows: list[dict[str, Any]] = []
    for compressed in data.values():
        part = json.loads(gzip.decompress(compressed))
        rows += [{name: column[index] for name, column in part["columns"].items()} for index in range(part["count"])]
    return rows
