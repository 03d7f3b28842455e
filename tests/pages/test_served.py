"""Pages of the server, rendered without a request."""

from __future__ import annotations

from markupsafe import Markup

from runner.pages.report.served import ServedPage, render_served


def test_page_that_is_still_being_built_reloads_itself() -> None:
    page = render_served(
        ServedPage("In a moment", [("making", Markup("<p>It is made.</p>"))], reload_seconds=3)
    ).decode()
    assert '<meta http-equiv="refresh" content="3">' in page
    assert "refresh" not in render_served(ServedPage("Here", [])).decode()


def test_page_marks_its_navigation_entry_and_the_signed_in_account() -> None:
    page = render_served(
        ServedPage("Mine", [], nav_path="/mine", links=[("/owner/a", "<a>")], account="ann", csrf_token="w")
    ).decode()
    assert '<a href="/mine" aria-current="page">ann</a>' in page
    assert '<a href="/owner/a">&lt;a&gt;</a>' in page
    assert "Sign in" not in page
