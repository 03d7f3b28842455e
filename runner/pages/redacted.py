"""Removes the secrets of this machine from the pages that `nip-run report` writes to share with others."""

from __future__ import annotations

import gzip
from dataclasses import replace

import orjson
from markupsafe import Markup

from runner.base.redaction import Redactor
from runner.pages.packing import LEVEL
from runner.pages.site import Section, Site, StorePiece


def without_secrets(store_piece: StorePiece, redactor: Redactor) -> StorePiece:
    """Return a function that removes the redactor's secrets from a piece and calls `store_piece`."""
    if not redactor.reach:
        return store_piece

    def store_redacted(name: str, piece: bytes) -> None:
        data = gzip.decompress(piece)
        redacted = _redact(data, redactor)
        store_piece(name, piece if redacted == data else gzip.compress(redacted, LEVEL, mtime=0))

    return store_redacted


def site_without_secrets(site: Site, redactor: Redactor) -> Site:
    """Return a site without the redactor's secrets. For the pieces of its data, use `without_secrets`."""

    def redact_text(text: str) -> str:
        return redactor.redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    return replace(
        site,
        title=redact_text(site.title),
        links=[(redact_text(route), redact_text(name)) for route, name in site.links],
        sections=[Section(redact_text(section.route), Markup(redact_text(section.html))) for section in site.sections],  # noqa: S704 - it was HTML before
        about=orjson.loads(_redact(orjson.dumps(site.about), redactor)),
    )


def _redact(data: bytes, redactor: Redactor) -> bytes:
    return redactor.redact_escaped(redactor.redact(data))
