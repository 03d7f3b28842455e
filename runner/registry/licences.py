"""Licences that people usually mean, by their identifiers of SPDX, so that a misspelt one is noticed."""

from __future__ import annotations

from runner.text import did_you_mean

_CREATIVE = tuple(
    f"CC-{terms}-{version}"
    for terms in ("BY", "BY-SA", "BY-NC", "BY-ND", "BY-NC-SA", "BY-NC-ND")
    for version in ("1.0", "2.0", "2.5", "3.0", "4.0")
)
_GNU = tuple(
    f"{name}-{which}"
    for name in ("GPL-2.0", "GPL-3.0", "LGPL-2.1", "LGPL-3.0", "AGPL-3.0", "GFDL-1.3")
    for which in ("only", "or-later")
)
USUAL = frozenset(
    (
        *_CREATIVE, *_GNU, "CC0-1.0", "MIT", "MIT-0", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC",
        "Zlib", "MPL-2.0", "EPL-2.0", "EUPL-1.2", "BSL-1.0", "Unlicense", "WTFPL", "ODbL-1.0", "ODC-By-1.0", "PDDL-1.0",
        "CDLA-Permissive-1.0", "CDLA-Permissive-2.0", "CDLA-Sharing-1.0",
    )
)  # fmt: skip


def misspelt(licence: str) -> str | None:
    """What is nearly the identifier of a usual licence, told with that one; None of one that is, or of another word."""
    if licence in USUAL:
        return None
    exact = next((one for one in sorted(USUAL) if one.casefold() == licence.casefold()), None)
    near = f"; did you mean {exact!r}?" if exact else did_you_mean(licence, sorted(USUAL))
    return f"the licence {licence!r} is none of the usual ones{near}" if near else None
