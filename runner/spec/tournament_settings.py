"""The `tournament` section of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner.documents.dataclass_schema import option

MAX_PLAYERS = 64
MAX_JUDGES = 16


@dataclass(frozen=True, kw_only=True)
class PlayerSettings:
    """A player of a tournament: a model and, optionally, its own prompts."""

    model: str = option("The model group of the player.", example="strong")
    prompts: str | None = option(
        "A folder with the player's templates for both seats, which replace those of the key `prompts`. null: the "
        "player uses the same templates as the others.",
        default=None,
        example="prompts/code_validation/debate",
    )


@dataclass(frozen=True, kw_only=True)
class TournamentSettings:
    """The players, seats and judges of a tournament, and the choice of pairings.

    In each pairing, two players debate before a judge. About each datapoint they play four games: each player argues
    each side in each seat.
    """

    players: Mapping[str, PlayerSettings] = option(
        "The players by name.",
        example={"strong": {"model": "strong"}, "small": {"model": "small"}},
        minProperties=2,
        maxProperties=MAX_PLAYERS,
        propertyNames={
            "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$",
            "patternErrorMessage": "letters, digits, '_' and '-', at most 40, beginning with a letter or digit",
        },
    )
    seats: tuple[str, ...] | None = option(
        "The two provers of the protocol that the players of a pairing play. null: the protocol's only two provers.",
        default=None,
        example=["prover0", "prover1"],
        minItems=2,
        maxItems=2,
    )
    judges: tuple[str, ...] | None = option(
        "The model groups that judge. A round robin plays all players before each of them; otherwise, results choose. "
        "null: the model group of the verifier in `agents`.",
        default=None,
        example=["small"],
        minItems=1,
        maxItems=MAX_JUDGES,
    )
    pairing: Literal["round_robin", "swiss", "adaptive"] = option(
        "`round_robin`: every pairing plays about the same datapoints. `swiss`: in each round, players with similar "
        "ratings play each other. `adaptive`: the next pairing is the one whose games narrow the widest intervals of "
        "the ratings most.",
        default="round_robin",
    )
    games: int | None = option(
        "Maximum number of games of the tournament. null: all datapoints, or as many as the budget allows. `swiss` "
        "and `adaptive` need this key or a budget.",
        default=None,
        example=400,
        minimum=4,
    )
    datapoints_per_round: int = option(
        "Number of datapoints that a pairing plays before the next pairing is chosen. For `round_robin`, this matters "
        "only with a budget.",
        default=5,
        minimum=1,
    )
