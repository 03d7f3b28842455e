"""Which of several servers the calls of one agent in one game go to: those of a game stay where its prefix is warm.

The order of preference is by rendezvous hashing (Thaler and Ravishankar, 1998) of datapoint and agent, so that repeats
of a datapoint, whose prompts begin alike, prefer one server, and a server that is added or taken away moves only its
own share. Where a game goes is settled when it first asks: the first in its order that has no more than its share of
the games in play (Mirrokni, Thorup and Zadimoghaddam, 2018, by the same bound for each agent). It stays there until it
ends.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

from runner.models.interface import SampleKey

BOUND = 1.05
"""No server gets a game by which it would have more than this many times the mean of those in play."""

Rollout = tuple[str, int]
"""A datapoint, and which play of it."""


class Placement:
    """The games in play at some servers, which are known by their places in a list."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = tuple(server.encode() for server in servers)
        self._homes: dict[Rollout, dict[str, int]] = {}
        self._in_play: dict[str, list[int]] = {}

    def order(self, sample: SampleKey) -> list[int]:
        """All servers, the preferred one first."""
        said = f"{sample.datapoint}\0{sample.agent}\0".encode("utf-8", "surrogatepass")
        weights = [hashlib.blake2b(said + server, digest_size=8).digest() for server in self._servers]
        return sorted(range(len(weights)), key=weights.__getitem__)

    def home(self, sample: SampleKey, is_up: Callable[[int], bool]) -> int:
        """Where the calls of this sample's game and agent go; a game that is new goes to a server that is up."""
        homes = self._homes.setdefault((sample.datapoint, sample.repeat), {})
        home = homes.get(sample.agent)
        if home is None:
            home = homes[sample.agent] = self._placed(sample, is_up)
        return home

    def _placed(self, sample: SampleKey, is_up: Callable[[int], bool]) -> int:
        in_play = self._in_play.setdefault(sample.agent, [0] * len(self._servers))
        order = self.order(sample)
        open_ = [at for at in order if is_up(at)] or order
        most = math.ceil(BOUND * (sum(in_play[at] for at in open_) + 1) / len(open_))
        # The least loaded one is below the mean, and so below this.
        home = next(at for at in open_ if in_play[at] < most)
        in_play[home] += 1
        return home

    def ended(self, rollout: Rollout) -> None:
        """A game is over, or asked nothing here."""
        for agent, home in self._homes.pop(rollout, {}).items():
            self._in_play[agent][home] -= 1
