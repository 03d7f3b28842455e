"""Hostile texts that a user could write into any field."""

from __future__ import annotations

PAYLOADS: dict[str, str] = {
    "script": "<script>window.pwned=1</script>",
    "end of a script": "</script><script>window.pwned=1</script>",
    "end of a style": "</style><script>window.pwned=1</script>",
    "end of a title": "</title></section></main><img src=x onerror=window.pwned=1>",
    "comment": "--><!--<script>window.pwned=1//-->",
    "link": "javascript:window.pwned=1",
    "markdown link": "[look](javascript:window.pwned=1) <https://stranger.example/> www.stranger.example",
    "anchor": '<a href="https://stranger.example/">look</a>',
    "attribute": "\" autofocus onfocus=window.pwned=1 x='\" onmouseover='window.pwned=1",
    "svg": "<svg onload=window.pwned=1><use href='https://stranger.example/x.svg#a'/></svg>",
    "image": "<img src=https://stranger.example/x.png onerror=window.pwned=1>",
    "frame": "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "css": "}body{background:url(https://stranger.example/x)}@import 'https://stranger.example/x.css';",
    "ansi": "\x1b[2J\x1b]8;;https://stranger.example/\x07look\x1b]8;;\x07\x1b[31m",
    "right to left": "\u202edne\u2066 gpj.exe\u2069\u200f\u202c",
    "null": "a\x00b\x08c\x7fd\x85e",
    "lone surrogate": "a\ud800b",
    "line separator": "a\u2028b\u2029c\ufeffd\u200be\u00adf",
    "tag characters": "a\U000e0041\U000e0042b\ue000c",
    "template": "{{7*7}}{% for x in () %}{{ ''.__class__ }}${7*7}#{7*7}",
    "alphabet": "`${window.pwned=1}`-$\\u003cscript>\\x3cscript>&lt;script&gt;",
    "json": '"}],"runs":[{"slug":"x"}]}',
    "prototype": "__proto__",
    "address": "../../%2e%2e/%00?only=wrong#/run/x%",
    "long word": "W" * 3000,
}
"""Payloads by name. A payload that runs a script sets `window.pwned`."""
