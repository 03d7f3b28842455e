"""Build the README.md of a run's release: what was played, the result, and commands to play, check and compare the run.

The README has no text from models or datasets. Names that the publisher chose are formatted as code, so that they
cannot contain links or headings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.text import decimal, interval_ends, with_interval
from runner.documents.releases.manifest import FileSource, Release
from runner.models.api_keys import host_of
from runner.models.provider_traits import DEFAULT_PROVIDER, PROVIDERS, traits_of
from runner.models.retirements import shutdown_notes
from runner.registry.bundles.run_data import find_accuracy
from runner.registry.lineage.relations import describe_parents
from runner.registry.lineage.typed_facts import parse_groups
from runner.registry.markdown import as_cell, as_code, escape_inline, escape_line
from runner.results.leaderboard.unranked import Unranked
from runner.results.manifest import Manifest, verifiers_of
from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts
from runner.spec.origin import DATA

FILE = "README.md"
MAX_MODELS = 40
"""Maximum number of rows in the table of agents and models."""


def build_readme(
    release: Release, manifest: Manifest, spec: Mapping[str, object], metrics: Mapping[str, object], *, has_rows: bool
) -> bytes:
    """Return the content of README.md. `spec` is the resolved spec; `has_rows`: the release has the dataset's rows."""
    parts = [
        f"# {as_code(str(release.reference))}",
        *([escape_line(release.description)] if release.description else []),
        _introduction(manifest),
        *_parents(release, manifest),
        *_model_table(manifest, spec),
        _describe_result(manifest, metrics) + _unranked_note(manifest, spec),
        _commands(release, manifest, spec, has_rows=has_rows),
        *([] if has_rows else [_missing_rows_note()]),
        _sources(release),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _introduction(manifest: Manifest) -> str:
    kind = "A training run" if manifest.is_training_run else f"A {manifest.kind} run"
    return (
        f"{kind} of {as_code(manifest.name)} on {as_code(manifest.benchmark)}: protocol "
        f"{as_code(manifest.protocol)}, seed {manifest.seed}, played with nip-run {as_code(manifest.version)}, started "
        f"at {as_code(manifest.started_at)}."
    )


def _parents(release: Release, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence about the releases that this one continues or is based on, if there are any."""
    # For a part of a training run, such as a test, the README of the training run names these releases.
    links = () if manifest.parent_run_id is not None else release.links
    # The phrases are, for example, "continues run/acme/a@1" and "child of run/acme/b@2".
    phrases = [escape_line(phrase) for phrase in describe_parents(parse_groups(release.facts), links)]
    if phrases:
        yield f"It {'; '.join(f'is a {phrase}' if phrase.startswith('child') else phrase for phrase in phrases)}."


def _model_table(manifest: Manifest, spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the agents with their models and servers."""
    lines = ["| agent | model | server |", "| --- | --- | --- |"]
    for row in manifest.agents[:MAX_MODELS]:
        server = _describe_server(spec["models"].get(row["model_group"], {}), row)
        lines.append(f"| {as_cell(row['agent'])} | {as_cell(row['model'])} | {server} |")
    yield "\n".join(lines)


def _describe_server(group: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Describe the server of an agent's model, and the environment variable with the server's key."""
    provider = str(group.get("provider") or row["provider"])
    if provider not in PROVIDERS:
        return f"a server of the provider plugin {as_code(provider)}, which you must install"
    if not PROVIDERS[provider].remote:
        return "no server"
    if group.get("base_url") is None:
        traits = traits_of(provider)
        return f"{host_of(traits.base_url)}, key in {as_code(group.get('api_key_env') or traits.key_variable or '')}"
    server = f"a server of yours: {as_cell('models.' + row['model_group'] + '.base_url')}"
    key = group.get("api_key_env")
    return server if key is None else f"{server}, key in {as_cell(key)}"


def _describe_result(manifest: Manifest, metrics: Mapping[str, Any]) -> str:
    accuracy = find_accuracy(metrics)
    # A replay made no calls, so its own cost is 0, although `cost_usd` has the cost of the replayed answers.
    cost = "an unknown cost" if manifest.own_cost_usd is None else f"${manifest.own_cost_usd:,.4f}"
    totals = f"{manifest.rollouts or 0:,} rollouts, {manifest.completions or 0:,} completions, {cost}"
    if manifest.is_training_run:
        games = metrics.get("games", {})
        cost = "an unknown cost" if games.get("cost_usd") is None else f"${games['cost_usd']:,.4f}"
        totals = f"{games.get('rollouts', 0):,} rollouts, {games.get('completions', 0):,} completions, {cost}"
        tests = [(f"before iteration {test['iteration']}", test["accuracy"]) for test in metrics.get("tests", ())]
        results = [f"{name}: **{with_interval(row['value'], row['ci_low'], row['ci_high'])}**" for name, row in tests]
        totals += f". Accuracy on the test, with 95% intervals: {'; '.join(results)}" if results else ""
    if accuracy is None or accuracy["value"] is None:
        return f"It took {totals}. Its numbers are in `run_data.yaml`."
    ends = interval_ends(accuracy["ci_low"], accuracy["ci_high"])
    interval = "" if ends is None else f" [{', '.join(ends)}] (95% interval)"
    return (
        f"Accuracy **{decimal(accuracy['value'])}**{interval}, {accuracy['n']:,} rollouts in {accuracy['clusters']:,} "
        f"clusters. It took {totals}. All numbers are in `run_data.yaml`."
    )


def _unranked_note(manifest: Manifest, spec: Mapping[str, Any]) -> str:
    """Return a sentence on a run whose verdicts are not its verifier's own answers; an empty string for others."""
    reason = explain_fixed_verdicts((spec.get("protocol") or {}).get("force_guess"), verifiers_of(manifest))
    if reason is None and manifest.replay_of is not None:
        reason = Unranked.REPLAY.format(run=manifest.replay_of.run_id)
    return "" if reason is None else f" **Boards do not rank this run**: {escape_line(reason)}."


def _commands(release: Release, manifest: Manifest, spec: Mapping[str, Any], *, has_rows: bool) -> str:
    name = release.name
    keys = sorted(set(_key_approvals(manifest, spec)))
    allowed = "".join(f" --allow-key {key}" for key in keys)
    url_settings = sorted(set(_base_url_settings(manifest, spec)))
    overrides = "".join(f" {setting}=URL" for setting in url_settings)
    options = f"{' --from WHERE' if manifest.is_training_run else ''}{'' if has_rows else ' --set dataset.path=FILE'}"
    lines = [
        f"nip-run get {release.reference} {name} --from WHERE    # WHERE is the registry; checks every hash",
        f"nip-run reproduce {name}{options}    # recomputes every number from the transcripts; calls no model",
    ]
    if not manifest.is_training_run:
        lines.append(f"nip-run show {name}/{DATA}")
    trainers = ((spec.get("training") or {}).get("trainers") or {}).values()
    allowed += " --allow-command PROGRAM" if any(trainer.get("command") for trainer in trainers) else ""
    lines.append(f"nip-run {name}{overrides}{allowed}    # plays it again, with your own key")
    if not manifest.is_training_run:
        lines.append(f"nip-run compare {name}/{DATA} last")
    explanation = (
        f"Playing it again contacts only the servers in the table above, and {_describe_cost(manifest)}. To change a "
        "hyperparameter, edit `parameters.yaml` first; `environment.lock` has the packages that it was played with."
    )
    for note in shutdown_notes(release.facts):
        explanation += f" {escape_line(note)}."
    return "\n".join(("```sh", *lines, "```", "", explanation))


def _describe_cost(manifest: Manifest) -> str:
    if manifest.is_whole_replay:
        return "costs as much as the run that it replays"
    if manifest.cost_usd is None:
        return "costs what your server charges for the same number of tokens"
    return f"costs about ${manifest.cost_usd:,.2f}, as it did originally"


def _remote_groups(manifest: Manifest, spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and settings of each model group that runs on a server."""
    for name in dict.fromkeys(row["model_group"] for row in manifest.agents):
        group = spec["models"].get(name, {})
        if PROVIDERS[str(group.get("provider") or DEFAULT_PROVIDER)].remote:
            yield name, group


def _key_approvals(manifest: Manifest, spec: Mapping[str, object]) -> Iterator[str]:
    """Yield the values of `--allow-key` that are needed to play the run again."""
    for _, group in _remote_groups(manifest, spec):
        is_provider_api = group.get("base_url") is None
        traits = traits_of(group.get("provider") or DEFAULT_PROVIDER)
        key = group.get("api_key_env") or (traits.key_variable if is_provider_api else None)
        headers = [str(value).removeprefix("$") for value in (group.get("headers") or {}).values()]
        yield from (
            f"{variable}={host_of(traits.base_url) if is_provider_api else 'HOST'}"
            for variable in (key, *headers)
            if variable
        )


def _base_url_settings(manifest: Manifest, spec: Mapping[str, object]) -> Iterator[str]:
    """Yield the spec keys of the server addresses that users must set to play the run again."""
    yield from (
        f"models.{name}.base_url" for name, group in _remote_groups(manifest, spec) if group.get("base_url") is not None
    )


def _missing_rows_note() -> str:
    return (
        "**The rows of the dataset are not in this release**, because its license forbids it. "
        f"`{DATA}/inputs/dataset.pin.json` identifies the file by hash and source, and has the hash of every row. "
        "To show, recompute or play it, add that file once with the second command above; its rows are checked by hash."
    )


def _sources(release: Release) -> str:
    sources = [f"- {name}: {_describe_source(source)}" for name, source in sorted(release.sources.items())]
    if not sources:
        return "The sources of its files were not recorded, so the release is not pinned to a commit."
    return "\n".join(("Sources:", "", *sources))


def _describe_source(source: FileSource) -> str:
    """Describe the source of a part of the run, such as its prompts, and why the part is not pinned to a commit."""
    path = "" if source.path is None else as_code(source.path)
    if source.repository is not None:
        repository = f"{as_code(source.repository)} at {as_code(source.commit or 'no commit')}"
        path = ", ".join(filter(None, (repository, path)))
    if source.clean:
        return path or escape_line(source.why or "its source is not known")
    return f"{path}{' ' if path else ''}(not pinned: {escape_inline(source.why or 'nothing is known of it')})"
