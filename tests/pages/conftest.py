"""One run that a stranger made, for all that look at its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hostile_text import hostile_run


@pytest.fixture(scope="session")
def of_a_stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile"))
