"""Check license expressions in options against the SPDX list, and suggest the identifier that the user may mean."""

from __future__ import annotations

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from runner.base.errors import UsageError
from runner.base.text import did_you_mean

_CC = tuple(
    f"CC-{terms}-{version}"
    for terms in ("BY", "BY-SA", "BY-NC", "BY-ND", "BY-NC-SA", "BY-NC-ND")
    for version in ("1.0", "2.0", "2.5", "3.0", "4.0")
)
_GNU = tuple(
    f"{name}-{suffix}"
    for name in ("GPL-2.0", "GPL-3.0", "LGPL-2.1", "LGPL-3.0", "AGPL-3.0", "GFDL-1.3")
    for suffix in ("only", "or-later")
)
SUGGESTED = frozenset(
    (
        *_CC, *_GNU, "CC0-1.0", "MIT", "MIT-0", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC",
        "Zlib", "MPL-2.0", "EPL-2.0", "EUPL-1.2", "BSL-1.0", "Unlicense", "WTFPL", "ODbL-1.0", "ODC-By-1.0", "PDDL-1.0",
        "CDLA-Permissive-1.0", "CDLA-Permissive-2.0", "CDLA-Sharing-1.0",
    )
)  # fmt: skip
"""The identifiers to suggest."""


def canonical_license(option: str, expression: str | None) -> str | None:
    """Return an SPDX license expression in its standard spelling; None if `expression` is None.

    Raises:
        UsageError: `expression` is not SPDX. The message names `option`, and suggests an identifier.
    """
    if expression is None:
        return None
    try:
        return canonicalize_license_expression(expression)
    except InvalidLicenseExpression as error:
        hint = did_you_mean(expression, sorted(SUGGESTED)) or "."
        raise UsageError(
            f"{option} {expression}: not an SPDX license expression{hint} Choose an identifier from "
            "https://spdx.org/licenses, or write LicenseRef-NAME for terms of your own"
        ) from error
