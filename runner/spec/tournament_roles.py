"""The agents that players and judges of a tournament play, and the model groups that a tournament calls."""

from __future__ import annotations

from runner.game.protocols.protocol import Protocol
from runner.spec.experiment import Experiment
from runner.spec.tournament_settings import TournamentSettings

GAMES_PER_REPEAT = 4
"""The number of games of a pairing in one repeat of a datapoint: each player argues each side in each seat."""

PANEL = "panel"
"""The name of the only judge if the protocol has a panel."""


def seats_of(settings: TournamentSettings, protocol: Protocol) -> tuple[str, ...]:
    """Return the agents that the players of a pairing play: two, unless the spec has a problem."""
    return settings.seats or protocol.prover_names


def judges_of(experiment: Experiment, settings: TournamentSettings, protocol: Protocol) -> tuple[str, ...]:
    """Return the model groups that judge. A panel counts as one judge, named `PANEL`."""
    if protocol.file.panel is not None:
        return (PANEL,)
    return settings.judges or (experiment.agents[protocol.verifier_name].model,)


def called_groups(experiment: Experiment, protocol: Protocol) -> list[str]:
    """Return the model groups that a tournament calls: of players, judges, and provers that no player plays."""
    settings = experiment.tournament
    assert settings is not None
    replaced = {*seats_of(settings, protocol)}
    judges: tuple[str, ...] = ()
    if protocol.file.panel is None:
        replaced.add(protocol.verifier_name)
        judges = judges_of(experiment, settings, protocol)
    others = [experiment.agents[name].model for name in protocol.agent_names if name not in replaced]
    players = (player.model for player in settings.players.values())
    return list(dict.fromkeys((*players, *judges, *others)))
