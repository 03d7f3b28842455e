"""README.md of a run's release: what was played, what it came to, and the commands to play, check and compare it.

No word of a model or of a dataset stands in it, and what its user named is shown as code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.text import decimal, interval_ends, with_interval
from runner.documents.releases.manifest import FileSource, Release
from runner.models.api_keys import host_of
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS, traits_of
from runner.models.retirements import shutdown_notes
from runner.registry.bundles.run_data import accuracy_of
from runner.registry.lineage.relations import made_from_in_words
from runner.registry.lineage.session_facts import groups_of
from runner.registry.markdown import cell, code, plain, prose
from runner.results.manifest import Manifest
from runner.spec.origin import DATA

FILE = "README.md"
MOST_MODELS = 40


def readme(
    release: Release, manifest: Manifest, spec: Mapping[str, Any], metrics: Mapping[str, Any], *, has_rows: bool
) -> bytes:
    """The file; `spec` is the run's resolved spec. `has_rows`: the dataset's rows are in the release."""
    parts = [
        f"# {code(str(release.reference))}",
        *([plain(release.description)] if release.description else []),
        _what(manifest),
        *_made_from(release, manifest),
        *_models(manifest, spec),
        _result(manifest, metrics),
        _commands(release, manifest, spec, has_rows=has_rows),
        *([] if has_rows else [_without_rows()]),
        _files(release),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _what(manifest: Manifest) -> str:
    kind = "A training run" if manifest.is_training_run else f"A {manifest.kind} run"
    return (
        f"{kind} of {code(manifest.name)} on {code(manifest.benchmark)}: protocol {code(manifest.protocol)}, seed "
        f"{manifest.seed}, played with nip-run {code(manifest.version)} from {code(manifest.started_at)}."
    )


def _made_from(release: Release, manifest: Manifest) -> Iterator[str]:
    """What it continues or is a child of; of a part of a training run, that is told of the whole."""
    links = () if manifest.parent_run_id is not None else release.links
    told = [plain(words) for words in made_from_in_words(groups_of(release.facts), links)]
    if told:
        yield f"It {'; '.join(f'is a {words}' if words.startswith('child') else words for words in told)}."


def _models(manifest: Manifest, spec: Mapping[str, Any]) -> Iterator[str]:
    """A table of who was played by which model, and where that is asked."""
    rows = [
        f"| {cell(row['agent'])} | {cell(row['model'])} | {_where(spec['models'].get(row['model_group'], {}), row)} |"
        for row in manifest.agents[:MOST_MODELS]
    ]
    yield "\n".join(("| agent | model | is asked at |", "| --- | --- | --- |", *rows))


def _where(group: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    provider = group.get("provider") or row["provider"]
    if not PROVIDERS[provider if provider in PROVIDERS else DEFAULT_PROVIDER].remote:
        return "no server"
    if group.get("base_url") is None:
        traits = traits_of(provider)
        return f"{host_of(traits.base_url)}, key in {code(group.get('api_key_env') or traits.key_variable or '')}"
    said = f"a server of yours: {cell('models.' + row['model_group'] + '.base_url')}"
    key = group.get("api_key_env")
    return said if key is None else f"{said}, key in {cell(key)}"


def _result(manifest: Manifest, metrics: Mapping[str, Any]) -> str:
    accuracy = accuracy_of(metrics)
    cost = "a cost that is not known" if manifest.own_cost_usd is None else f"${manifest.own_cost_usd:,.4f}"
    asked = f"{manifest.rollouts or 0:,} rollouts, {manifest.completions or 0:,} completions, {cost}"
    if manifest.is_training_run:
        games = metrics.get("games", {})
        cost = "a cost that is not known" if games.get("cost_usd") is None else f"${games['cost_usd']:,.4f}"
        asked = f"{games.get('rollouts', 0):,} rollouts, {games.get('completions', 0):,} completions, {cost}"
        tests = [(f"before iteration {test['iteration']}", test["accuracy"]) for test in metrics.get("tests", ())]
        shown = [f"{name}: **{with_interval(row['value'], row['ci_low'], row['ci_high'])}**" for name, row in tests]
        asked += f". Accuracy on the test, with 95% intervals: {'; '.join(shown)}" if shown else ""
    if accuracy is None or accuracy["value"] is None:
        return f"It took {asked}. Its numbers are in `run_data.yaml`."
    ends = interval_ends(accuracy["ci_low"], accuracy["ci_high"])
    interval = "" if ends is None else f" [{', '.join(ends)}] (95% interval)"
    return (
        f"Accuracy **{decimal(accuracy['value'])}**{interval}, {accuracy['n']:,} rollouts in {accuracy['clusters']:,} "
        f"clusters. It took {asked}. All numbers are in `run_data.yaml`."
    )


def _commands(release: Release, manifest: Manifest, spec: Mapping[str, Any], *, has_rows: bool) -> str:
    name = release.name
    keys = sorted(set(_keys(manifest, spec)))
    allowed = "".join(f" --allow-key {key}" for key in keys)
    given = sorted(set(_addresses(manifest, spec)))
    at = "".join(f" {key}=URL" for key in given)
    given_too = f"{' --from WHERE' if manifest.is_training_run else ''}{'' if has_rows else ' --set dataset.path=FILE'}"
    lines = [
        f"nip-run get {release.reference} {name} --from WHERE    # WHERE is the registry; checks every hash",
        f"nip-run reproduce {name}{given_too}    # recomputes every number from the transcripts; calls nobody",
    ]
    if not manifest.is_training_run:
        lines.append(f"nip-run show {name}/{DATA}")
    trainers = ((spec.get("training") or {}).get("trainers") or {}).values()
    allowed += " --allow-command PROGRAM" if any(trainer.get("command") for trainer in trainers) else ""
    lines.append(f"nip-run {name}{at}{allowed}    # plays it anew, with your own key")
    if not manifest.is_training_run:
        lines.append(f"nip-run compare {name}/{DATA} last")
    said = (
        f"To play it anew contacts the servers of the table above and no other, and {_cost(manifest)}. Change any "
        "hyperparameter in `parameters.yaml` before; `environment.lock` has the packages that it was played with."
    )
    for note in shutdown_notes(release.facts):
        said += f" {plain(note)}."
    return "\n".join(("```sh", *lines, "```", "", said))


def _cost(manifest: Manifest) -> str:
    if manifest.is_whole_replay:
        return "costs what the run costs that it replays"
    if manifest.cost_usd is None:
        return "costs what your server takes for as many tokens"
    return f"costs about ${manifest.cost_usd:,.2f}, as it did then"


def _groups(manifest: Manifest, spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The model groups that are asked over a network."""
    for name in dict.fromkeys(row["model_group"] for row in manifest.agents):
        group = spec["models"].get(name, {})
        if PROVIDERS[group.get("provider") or DEFAULT_PROVIDER].remote:
            yield name, group


def _keys(manifest: Manifest, spec: Mapping[str, Any]) -> Iterator[str]:
    for _, group in _groups(manifest, spec):
        is_theirs = group.get("base_url") is None
        traits = traits_of(group.get("provider") or DEFAULT_PROVIDER)
        key = group.get("api_key_env") or (traits.key_variable if is_theirs else None)
        headers = [str(value).removeprefix("$") for value in (group.get("headers") or {}).values()]
        yield from (
            f"{variable}={host_of(traits.base_url) if is_theirs else 'HOST'}"
            for variable in (key, *headers)
            if variable
        )


def _addresses(manifest: Manifest, spec: Mapping[str, Any]) -> Iterator[str]:
    yield from (
        f"models.{name}.base_url" for name, group in _groups(manifest, spec) if group.get("base_url") is not None
    )


def _without_rows() -> str:
    return (
        "**The rows of the dataset are not in this release**, since its licence forbids it. "
        f"`{DATA}/inputs/dataset.pin.json` says which file it is, by hash and source, and has the hash of every row. "
        "To show, recompute or play it give that file once, by the second command above; its rows are checked by hash."
    )


def _files(release: Release) -> str:
    sources = [f"- {name}: {_source(source)}" for name, source in sorted(release.sources.items())]
    if not sources:
        return "Where its files came from was not recorded, so that it is not pinned."
    return "\n".join(("Where it came from:", "", *sources))


def _source(source: FileSource) -> str:
    """Where a part came from, in a line. Why it is not pinned is in words of nip-run, which hold no markup."""
    path = "" if source.path is None else code(source.path)
    if source.repository is not None:
        path = ", ".join(filter(None, (f"{code(source.repository)} at {code(source.commit or 'no commit')}", path)))
    if source.clean:
        return path or plain(source.why or "nothing is known of it")
    return f"{path}{' ' if path else ''}(not pinned: {prose(source.why or 'nothing is known of it')})"
