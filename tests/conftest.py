"""What every test is kept from: a real key."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_real_keys():
    """No test can spend money, whatever the developer's shell exports."""
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        del os.environ[name]
