"""A run with hostile texts, shared by all tests of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hostile_text import hostile_run


@pytest.fixture(scope="session")
def hostile_run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile"))
