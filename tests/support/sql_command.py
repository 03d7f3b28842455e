"""`nip-run sql` in this process."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from runner.cli.main import main


def run_sql(results: Path, *arguments: str | Path, stdin: str | bytes | None = "") -> subprocess.CompletedProcess[str]:
    """Run `nip-run sql` in this process."""
    out, err = io.StringIO(), io.StringIO()
    data = stdin.encode() if isinstance(stdin, str) else stdin
    with (
        patch.object(sys, "stdin", data if data is None else io.TextIOWrapper(io.BytesIO(data))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(["sql", "--results", str(results), *map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def read_sql_output(results: Path, *arguments: str | Path, stdin: str = "") -> str:
    process = run_sql(results, *arguments, stdin=stdin)
    assert process.returncode == 0, process.stderr
    return process.stdout
