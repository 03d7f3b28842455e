"""Python imports this file when a process of a test starts, because `guard.guard_variables` puts it on the path."""

from __future__ import annotations

import os

from tests.support.guard import FOLDERS, forbid_access

forbid_access(os.environ[FOLDERS].split(os.pathsep))
