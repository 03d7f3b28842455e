"""Texts that a stranger may write anywhere, and a run whose records are full of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
"""By name; what runs a script sets `window.pwned`."""

JOINED = " ".join(f"[{name}] {text}" for name, text in PAYLOADS.items())


def in_file(text: str) -> str:
    """A payload as a dataset's file can hold it: no half of a pair."""
    return text.encode("utf-8", "replace").decode()


def dataset_file(folder: Path) -> Path:
    """A datapoint for each payload, which stands in its id, its group, and in the columns' names and values."""
    texts = list(map(in_file, PAYLOADS.values()))
    rows = [
        {
            "id": f"p{number} {text[:200]}",
            "label": number % 2,
            "set": f"group {text[:200]}",
            "question": f"[P{number:02}] {text}",
            **{f"column {at} {of[:200]}": f"value {at} {text}" for at, of in enumerate(texts)},
        }
        for number, text in enumerate(texts)
    ]
    path = folder / "data <img src=x onerror=window.pwned=1>.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def spec_file(folder: Path, base_url: str) -> Path:
    """A spec whose every free text is a payload, on a server whose every answer is one (`servers/hostile.py`)."""
    system = PAYLOADS["script"] + PAYLOADS["right to left"] + PAYLOADS["ansi"]
    prompts = folder / "prompts"
    prompts.mkdir(parents=True)
    for agent in ("prover", "verifier"):
        (prompts / f"{agent}.jinja").write_text(
            f"{system}\n{{{{ question }}}}\n{{{{ accept }}}}"
            if agent == "verifier"
            else f"{system}\n{{{{ question }}}}",
            "utf-8",
        )
    for part, words in (("confidence", "{{ confidence_marker }} 0.7"), ("last_round", "{{ accept }}")):
        (prompts / f"verifier.{part}.jinja").write_text(words, "utf-8")
    model = {
        "provider": "openai",
        "model": f"model {PAYLOADS['image']}",
        "base_url": base_url,
        "logprobs": True,
        "top_logprobs": 3,
    }
    spec: dict[str, Any] = {
        "name": "hostile",
        "seed": 1,
        "benchmark": f"benchmark {PAYLOADS['svg']}",
        "dataset": {"path": dataset_file(folder).name, "group_by": "set"},
        "protocol": {"use": "nip", "max_message_rounds": 4},
        "prompts": "prompts",
        "models": {"m": model},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "verdict": {"confidence": "both"},
        "retry": {"transient": {"first_wait": 0.001, "max_wait": 0.002, "attempts": 4}, "invalid_response": {"attempts": 3}},
    }  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return path
