"""`nip-run uninstall`: not built yet."""

from __future__ import annotations

import argparse

from runner.errors import UsageError


def execute(args: argparse.Namespace) -> int:
    raise UsageError(f"not built yet: {args}")
