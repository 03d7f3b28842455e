"""Pages for others, without the secrets of this machine that stand in a run's texts."""

from __future__ import annotations

import gzip
from dataclasses import replace

import orjson
from markupsafe import Markup

from runner.base.redaction import Redactor
from runner.pages.packing import LEVEL
from runner.pages.site import Keep, Section, Site


def without_secrets(keep: Keep, redactor: Redactor) -> Keep:
    """Keeps pieces without the values that a redactor knows; those that have none as they are."""
    if not redactor.reach:
        return keep

    def kept(name: str, piece: bytes) -> None:
        data = gzip.decompress(piece)
        clean = _clean(data, redactor)
        keep(name, piece if clean == data else gzip.compress(clean, LEVEL, mtime=0))

    return kept


def site_without_secrets(site: Site, redactor: Redactor) -> Site:
    """A site that has none of the values that a redactor knows; its data are `without_secrets`' business."""

    def clean(text: str) -> str:
        return redactor.redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    return replace(
        site,
        title=clean(site.title),
        links=[(clean(route), clean(name)) for route, name in site.links],
        sections=[Section(clean(one.route), Markup(clean(one.html))) for one in site.sections],  # noqa: S704 - it was HTML before
        about=orjson.loads(_clean(orjson.dumps(site.about), redactor)),
    )


def _clean(data: bytes, redactor: Redactor) -> bytes:
    return redactor.redact_escaped(redactor.redact(data))
