"""The page of a leak audit."""

from __future__ import annotations

from markupsafe import Markup

from runner.curation.audit.report import AuditReport
from runner.pages.html import policy, render_template, style

_CSS = "base.css"


def audit_page(name: str, report: AuditReport) -> Markup:
    """Return the page of an audit, without a script. `name` is the dataset as the user wrote it."""
    facts = {
        "title": f"Audit of {name}",
        "policy": policy(connects=False, code="", css=style(_CSS)),
        "style": Markup(style(_CSS)),  # noqa: S704 - a file of this package
        "sections": [],
        "about": {},
        "report": report,
    }
    return render_template("audit.html", facts)
