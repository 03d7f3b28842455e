"""The page of a leak audit."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from runner.curation.audit.report import AuditReport
from runner.pages.html import PageView, policy, render_template, style

_CSS = "base.css"


@dataclass(frozen=True, kw_only=True)
class AuditView(PageView):
    """The content of `audit.html`."""

    report: AuditReport


def audit_page(name: str, report: AuditReport) -> Markup:
    """Return the page of an audit, without a script. `name` is the dataset as the user wrote it."""
    view = AuditView(
        title=f"Audit of {name}",
        policy=policy(connects=False, code="", css=style(_CSS)),
        style=Markup(style(_CSS)),  # noqa: S704 - a file of this package
        report=report,
    )
    return render_template("audit.html", view)
