"""Python imports this file at the start of every process that a test starts: `guard.variables` puts it on the path."""

from __future__ import annotations

import os

from tests.support.guard import FOLDERS, close

close(os.environ[FOLDERS].split(os.pathsep))
