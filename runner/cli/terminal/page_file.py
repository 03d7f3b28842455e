"""The local file that redirects a browser to a page server, whose address contains a secret token.

Only this user can read the file, while other users of the machine can read the arguments of processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.pages.live.server import PageServer


@contextmanager
def page_file(server: PageServer) -> Iterator[str]:
    """Write the file of a server, yield the file's URI, and delete the file at the end."""
    from runner.base.storage.atomic_files import atomic_write

    with TemporaryDirectory(prefix="nip-run-page-") as folder:
        page = Path(folder) / "view.html"
        atomic_write(page, server.redirect_page, mode=0o600)
        yield page.as_uri()


def open_in_browser(uri: str) -> None:
    """Open a file in a graphical browser, if there is a display. A text browser would take over the terminal."""
    if sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        import webbrowser

        webbrowser.open(uri)
