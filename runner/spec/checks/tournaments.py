"""Check the `tournament` section of a spec: players, seats, judges, and keys that a tournament excludes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.base.text import comma_join, counted, did_you_mean
from runner.game.prompts.templates import PromptSet
from runner.game.protocols.protocol import Protocol
from runner.spec.experiment import Experiment
from runner.spec.paired_design import stance_problems
from runner.spec.tournament_roles import GAMES_PER_REPEAT, judges_of, seats_of
from runner.spec.tournament_settings import TournamentSettings

_SECTION = "tournament"


def count_pairings(experiment: Experiment, settings: TournamentSettings, protocol: Protocol) -> int:
    """Return the number of pairings of two players and a judge."""
    players = len(settings.players)
    return players * (players - 1) // 2 * len(judges_of(experiment, settings, protocol))


def tournament_problems(
    experiment: Experiment, protocol: Protocol, prompts: PromptSet, player_prompts: Mapping[str, PromptSet]
) -> Iterator[tuple[str, str]]:
    """Yield the key and the message of each problem of the section `tournament`."""
    settings = experiment.tournament
    if settings is None:
        if experiment.kind == "tournament":
            yield "kind", "a tournament needs a section `tournament`; add tournament.players"
        return
    if experiment.kind != "tournament":
        yield _SECTION, "tournament works only with `kind: tournament`; set kind, or remove tournament"
    if protocol.lists_answers:
        yield "protocol.use", f"the verdicts of {protocol.name} choose from listed answers; use a protocol without them"
        return
    yield from _group_problems(experiment, settings)
    yield from _player_problems(settings, player_prompts)
    seat_problems = list(_seat_problems(settings, protocol))
    yield from seat_problems
    yield from _excluded_keys(experiment, protocol)
    if seat_problems:
        return
    by_player = {f"{_SECTION}.players.{name}.prompts": templates for name, templates in player_prompts.items()}
    for key, templates in {"prompts": prompts, **by_player}.items():
        for reason in stance_problems(protocol, _with_templates(prompts, templates), "use another protocol"):
            yield key, f"players exchange sides: {reason}"
    yield from _size_problems(experiment, settings, protocol)


def _with_templates(prompts: PromptSet, templates: PromptSet) -> PromptSet:
    return PromptSet({**prompts.sources, **templates.sources}, files={**prompts.files, **templates.files})


def _group_problems(experiment: Experiment, settings: TournamentSettings) -> Iterator[tuple[str, str]]:
    """Yield players and judges whose model group does not exist."""
    groups = {f"{_SECTION}.players.{name}.model": player.model for name, player in settings.players.items()}
    groups |= {f"{_SECTION}.judges.{number}": judge for number, judge in enumerate(settings.judges or ())}
    for key, group in groups.items():
        if group not in experiment.models:
            hint = did_you_mean(group, experiment.models) or f"; choose one of {comma_join(experiment.models)}"
            yield key, f"no model group {group!r}{hint}"
    for number, judge in enumerate(settings.judges or ()):
        if judge in (settings.judges or ())[:number]:
            yield f"{_SECTION}.judges.{number}", f"{judge} is a judge already; remove one of the two"


def _player_problems(
    settings: TournamentSettings, player_prompts: Mapping[str, PromptSet]
) -> Iterator[tuple[str, str]]:
    """Yield players that equal an earlier player, so that their games would be games against themselves."""
    contents = {
        name: (player.model, player_prompts[name].sources if name in player_prompts else None)
        for name, player in settings.players.items()
    }
    for name, content in contents.items():
        same = next((other for other, other_content in contents.items() if other_content == content), name)
        if same != name:
            message = (
                f"{name} is the same player as {same}: both have the model group {content[0]} and equal prompts; "
                "remove one of them, or set another model or prompts"
            )
            yield f"{_SECTION}.players.{name}", message


def _seat_problems(settings: TournamentSettings, protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Yield seats that are not two provers with opposite stances."""
    provers = protocol.prover_names
    for number, name in enumerate(settings.seats or ()):
        if name not in protocol.agent_names:
            hint = did_you_mean(name, provers) or f"; choose two of {comma_join(provers)}"
            yield f"{_SECTION}.seats.{number}", f"{protocol.name} has no agent {name!r}{hint}"
        elif name not in provers:
            yield f"{_SECTION}.seats.{number}", f"{name} is no prover; choose two of {comma_join(provers)}"
    seats = seats_of(settings, protocol)
    if not set(seats) <= set(provers):
        return
    if len(set(seats)) != 2:
        if settings.seats is not None:
            yield f"{_SECTION}.seats", f"{seats[0]} is listed twice; choose two different provers"
        elif len(provers) > 2:
            yield _SECTION, f"{protocol.name} has {len(provers)} provers; choose two of them with tournament.seats"
        else:
            has = counted(len(provers), "prover")
            yield "protocol.use", f"a tournament needs two provers, and {protocol.name} has {has}; use debate"
    elif not protocol.are_opposed or len({protocol.default_stance(seat) for seat in seats}) == 1:
        message = (
            f"in {protocol.name}, {comma_join(seats)} argue for the same verdict, so no game has a winner between "
            "them; use a protocol with opposite stances, such as debate"
        )
        yield "protocol.use", message


def _excluded_keys(experiment: Experiment, protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Yield keys that cannot be combined with a tournament."""
    if experiment.fine_tune is not None:
        yield "fine_tune", "a tournament writes no fine-tuning files; remove fine_tune"
    if experiment.rollouts.num_responses_per_timestep is not None:
        key = "rollouts.num_responses_per_timestep"
        yield key, f"a tournament plays single games; remove {key}"
    if protocol.file.panel is not None and experiment.tournament is not None and experiment.tournament.judges:
        yield f"{_SECTION}.judges", f"{protocol.name} has a panel, whose models are in `agents`; remove judges"
    if protocol.parameters.force_guess is not None:
        yield "protocol.force_guess", "a replaced verdict chooses no winner; set protocol.force_guess to null"


def _size_problems(
    experiment: Experiment, settings: TournamentSettings, protocol: Protocol
) -> Iterator[tuple[str, str]]:
    """Yield limits that are missing or too small."""
    is_round_robin = settings.pairing == "round_robin"
    if not is_round_robin and settings.games is None and not experiment.budget.limited:
        yield (
            f"{_SECTION}.pairing",
            f"{settings.pairing} chooses pairings until a limit is reached; set tournament.games or a budget",
        )
    if settings.games is None:
        return
    per_datapoint = GAMES_PER_REPEAT * experiment.rollouts.per_datapoint
    fewest = per_datapoint * (count_pairings(experiment, settings, protocol) if is_round_robin else 1)
    if settings.games < fewest:
        unit = "one datapoint in each pairing" if is_round_robin else "one datapoint of one pairing"
        yield f"{_SECTION}.games", f"{settings.games} is fewer than the {fewest} games of {unit}; set {fewest} or more"
