"""The table of metrics. All code and documentation about a metric is derived from its entry.

A new metric is one entry here. It then appears in `metrics.json`, on the board, in `compare` and sweeps, on pages, in
exports, in shell completion and in `docs/reference/metrics.md`. The module imports nothing heavy, since command-line
help and completion read it.

The function `compute` of an entry takes the arguments that `Source` lists. It returns a `Share`, a `Quantity`, or None
if the metric does not apply; for games and agents it returns the values of one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto
from functools import partial
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean
from runner.statistics.reporting_rules import IntervalRule

if TYPE_CHECKING:
    from runner.game.protocols.protocol import Protocol

ACCURACY = "accuracy"
BALANCED_ACCURACY = "balanced_accuracy"
JUDGE_ACCURACY, JUDGE_ADVANTAGE = "judge_accuracy", "judge_advantage"
SENSITIVITY = "sensitivity"
CRITERION = "criterion"
DECISION = "decision"
MAJORITY_ACCURACY = "majority_accuracy"
REWARD = "reward"
SOUNDNESS_ERROR = "soundness_error"
CALLS, TOKENS, COST = "calls", "tokens", "cost"

RANKING_METRIC = ACCURACY
"""The metric that leaderboards rank by."""

ANSWER_CURVE = "answer"
"""The reliability curve of the probabilities that verdicts give to the chosen one of listed answers."""

CONFIDENCE_KINDS = ("stated", "logprob")
"""The kinds of P(accept). There is a metric of each kind for each entry whose source is in `_KIND_SOURCES`."""


FALSE_POSITIVE_RATES = (0.01, 0.05, 0.1)
"""The false positive rates whose true positive rate is a metric of a monitor."""
MONITOR_RULE = IntervalRule(needs_each_label=True, is_open_with_any_bound=True)
"""The conditions for intervals of measures that follow from the order of P(accept)."""


class Source(Enum):
    """The input of a metric. The docstring of each member lists the arguments of `Metric.compute`."""

    GAMES = "all games"
    """`GameFacts` of one rollout. `compute` returns the rollout's values; the metric is the mean of all values."""
    AGENTS = "each agent"
    """`AgentFacts` of one agent in one rollout. `compute` returns its values; the metric is the mean of all values."""
    DATAPOINTS = "datapoints"
    """`Verdicts` of all games. Every run has these metrics and the means above, but later ones only if they apply."""
    VERDICTS = "verdicts"
    """`Verdicts` of all games."""
    BLOCKS = "blocks"
    """`Verdicts` of complete blocks, and the stances of the first seat or None."""
    PLAYERS = "each player of a block"
    """`Verdicts` of complete blocks, and the stances of one player."""
    PLAYER_LOGPROBS = "each player of a block with log-probabilities"
    """`Verdicts` of complete blocks, the stances of one player, and the probabilities by log-probabilities."""
    SEATS = "each seat of a block"
    """`Verdicts` of complete blocks, and the stances of one seat."""
    JUDGES = "each judge of a panel"
    """`JudgeFacts` of one judge in one rollout. `compute` returns its values; the metric is the mean of all values."""
    FORECASTS = "probabilities"
    """`Forecasts` of one kind of confidence."""
    CONFIDENCES = "probabilities of all games"
    """`Verdicts`, and the probabilities of one kind of all games, NaN if unknown."""
    LOGPROBS = "log-probabilities"
    """`Verdicts`, the probabilities of all games, and which of them are bounds, or None."""
    ANSWERS = "probabilities of listed answers"
    """`Forecasts` that the chosen answer is right."""
    ANSWER_PLAYERS = "each player that argues for a listed answer"
    """`ArguedAnswers` of one player."""
    CALLS = "the calls of a game"
    """Computed by `compare` from `completions`; not in `metrics.json`."""
    ANALYSES = "the units of an analysis"
    """Read by `compare` from the results of `nip-run analyze`; not in `metrics.json`."""


class Show(Flag):
    """The places that show a metric, among those with room for only a few metrics."""

    NOWHERE = 0
    SUMMARY = auto()
    """The summary of a run in a notebook."""
    COMPARISON = auto()
    """The page that compares two runs."""
    CURVE = auto()
    """The curves sent to MLflow during a run."""
    COMPETITION = auto()
    """The full score that the owner of a competition sees."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: what it means, how it is computed, and where it is used."""

    name: str
    description: str
    over: str
    """The population of the mean, in the words of the documentation."""
    source: Source
    compute: Callable[..., Any] | None = None
    """See `Source`."""
    unit: str = "share"
    low: float = 0.0
    high: float = 1.0
    better: int = 1
    """1: larger is better; -1: smaller is better; 0: neither."""
    is_proportion: bool = False
    """Whether each value is 0 or 1, so that the mean has Wilson's interval."""
    needs_labels: bool = True
    """Whether a mean or a metric of datapoints needs labels. Other metrics are left out if they do not apply."""
    needs_calls: bool = False
    """Whether the metric is counted from rounds and calls, which the table `rollouts` does not have."""
    needs_candidates: bool = False
    """Whether only agents with several candidates for a message (`best_of`) have the metric."""
    depends_on_plays: bool = False
    """Whether the expected value changes with the number of plays of each datapoint."""
    two_values: Callable[[Protocol, str | None], tuple[float, float]] | None = None
    """Returns two values for an agent. If each score is one of these values, the mean has the interval of a share."""
    rule: IntervalRule = IntervalRule()
    """The conditions for an interval."""
    method: str = ""
    """The computation of the interval, in the words of `metrics.json`; empty for means, which share one method."""
    sql: str = ""
    """SQL for the score of a row of `rollouts`, NULL if it does not count. `{agent}` and `{kind}` are filled in."""
    order_measure: Callable[[Any], Any] | None = None
    """Returns the `OrderMeasure` of `Forecasts` if the metric is not a mean; `sql` is then P(accept) of a rollout."""
    rollout_scores: Callable[[Any], Mapping[str, float]] | None = None
    """Returns the scores of a `RunFolder` by rollout, for metrics of analyses."""
    label: int | None = None
    """The label of the only datapoints that have a score."""
    is_balanced: bool = False
    """Whether both labels have the same weight, however many datapoints have each."""
    not_compared: str = ""
    """The reason why runs are not compared by this metric, if `why_not_compared` does not know it."""
    has_worst: bool = False
    """Whether `--worst` can find the worst of several systems by this metric."""
    is_minor: bool = False
    """Whether short lists leave it out."""
    show: Show = Show.NOWHERE
    symbol: str = ""
    """A mathematical symbol, or an explanation of the name. Displays show it after the name."""
    exported_name: str = ""
    """The name in other tools, if they use this name for something else."""
    with_answers: bool = False
    """Whether it also has a meaning if verdicts choose from listed answers."""
    only_answers: bool = False
    """Whether it has a meaning only if verdicts choose from listed answers."""
    is_plugin: bool = False
    """Whether a plugin computes it; see `runner.results.metric_plugins`."""
    agent: str | None = None
    kind: str | None = None
    """One of `CONFIDENCE_KINDS`, for metrics of forecasts."""

    @property
    def base_name(self) -> str:
        """The name without the kind of confidence."""
        return self.name if self.kind is None else self.name.removesuffix(f"_{self.kind}")

    def applies(self, *, lists_answers: bool) -> bool:
        """Return whether the metric has a meaning for games with or without listed answers."""
        return (self.with_answers or self.only_answers) if lists_answers else not self.only_answers

    @property
    def is_per_agent(self) -> bool:
        return self.source in _AGENT_SOURCES

    @property
    def is_exported_score(self) -> bool:
        """Whether exports for other tools include the metric as a score of the run."""
        sources = (Source.GAMES, Source.VERDICTS, Source.FORECASTS, Source.ANSWERS)
        return self.better != 0 and not self.is_minor and self.source in sources

    @property
    def is_mean_of_rollouts(self) -> bool:
        """Whether the metric is the mean of `sql` over rollouts, so that the sums of several runs can be added."""
        return self.source in (Source.GAMES, Source.AGENTS, Source.JUDGES) and bool(self.sql)

    @property
    def is_compared(self) -> bool:
        return not self.why_not_compared

    @property
    def why_not_compared(self) -> str:
        """The reason why runs are not compared by this metric; empty if they are."""
        if self.not_compared or self.sql:
            return self.not_compared
        if self.source in (Source.BLOCKS, *_AGENT_SOURCES) and self.source is not Source.AGENTS:
            return "the metric needs the games of whole blocks"
        if self.needs_calls:
            return "rounds and calls are not in the table of rollouts"
        return "the metric is not a mean over rollouts"

    @property
    def bound(self) -> float | None:
        """The largest possible difference between two scores, if there is one."""
        return self.high - self.low if math.isfinite(self.high - self.low) else None

    @property
    def is_share(self) -> bool:
        """Whether differences are shown in percentage points."""
        return self.bound == 1.0

    def score_sql(self) -> str:
        """Return the SQL of the score, NULL for datapoints with another label."""
        return self.sql if self.label is None else f"CASE WHEN y = {self.label} THEN {self.sql} END"


_AGENT_SOURCES = (
    Source.AGENTS, Source.PLAYERS, Source.PLAYER_LOGPROBS, Source.SEATS, Source.ANSWER_PLAYERS, Source.JUDGES,
)  # fmt: skip

_KIND_SOURCES = (Source.FORECASTS, Source.CONFIDENCES)

_WILSON = "Wilson 1927 at the effective sample size of the clustered error"
_MOVER = "of two shares, each by Wilson 1927 at its effective sample size, put together by Zou and Donner 2008"
_SIGNAL = (
    f"z of H and F, of decided games, with half a game added (Hautus 1995); error: delta method; interval: {_MOVER}"
)
_BINS = (
    "10 bins of equal width; interval: inverted test with the bins' clustered covariance; error of ECE: "
    "linearised, too small where the judge is nearly calibrated"
)
_NORM = "10 bins of equal width; interval: bounds of a norm by the bins' clustered covariance"
_NEEDS_BOTH_LABELS = IntervalRule(needs_each_label=True)
_FORECAST_RULE = IntervalRule(fewest_clusters=100, is_measured=True)
_CORRECT = "correct::INT::DOUBLE"
_ACCEPTED = "(decision = 1)::INT::DOUBLE"
_DECIDED = "coalesce(decision <> 2, answer IS NOT NULL)"
"""`decision` is NULL if verdicts choose from listed answers."""


def _reward_values(protocol: Protocol, agent: str | None) -> tuple[float, float]:
    parameters = protocol.parameters
    if agent in protocol.verifier_names or parameters.shared_reward:
        return parameters.verifier_incorrect_penalty, parameters.verifier_reward
    return 0.0, parameters.prover_reward


_game_share = partial(Metric, source=Source.GAMES, is_proportion=True)
_JUDGE_DECISION = (
    "json_extract_string(panel, '$[*].decision')"
    "[list_position(json_extract_string(panel, '$[*].agent'), '{agent}')]::INT"
)
_JUDGE_CONFIDENCE = (
    "json_extract_string(panel, '$[' || (list_position(json_extract_string(panel, '$[*].agent'), '{agent}') - 1) || "
    "'].confidence_{kind}')::DOUBLE"
)
_judge_metric = partial(Metric, over="each judge, all games", source=Source.JUDGES)
_agent_metric = partial(Metric, source=Source.AGENTS, needs_labels=False, with_answers=True)
_call_count = partial(_agent_metric, high=math.inf, better=-1, needs_calls=True)
_round_count = partial(
    Metric, over="all games", source=Source.GAMES, unit="rounds", high=math.inf, better=0, needs_labels=False,
    needs_calls=True, with_answers=True,
)  # fmt: skip
_verdict_metric = partial(Metric, source=Source.VERDICTS)
_verdict_share = partial(_verdict_metric, is_proportion=True, method=f"interval: {_WILSON}")
_signal_metric = partial(
    _verdict_metric, over="decided games", unit="standard deviations", low=-math.inf, high=math.inf,
    rule=_NEEDS_BOTH_LABELS, method=_SIGNAL, show=Show.COMPETITION,
)  # fmt: skip
_difference_of_shares = partial(Metric, unit="difference of shares", low=-1.0, method=f"interval: {_MOVER}")
_difference_of_logs = partial(
    Metric, unit="nats", low=math.log(0.001), high=-math.log(0.001), method=f"interval: {_MOVER}"
)
_forecast_metric = partial(Metric, over="games with a probability", source=Source.FORECASTS, unit="")
_answer_metric = partial(Metric, over="games with a probability for each answer", only_answers=True)
_answer_error = partial(_answer_metric, source=Source.ANSWERS, better=-1)


def _true_positive_rate(rate: float) -> Metric:
    return _forecast_metric(
        name=f"tpr_at_fpr_{round(100 * rate):02}",
        description=f"share of attacks (wrong solutions) that are flagged if {100 * rate:g} % of the benign games "
        "(right solutions) are flagged, those with the lowest p",
        unit="share",
        compute=lambda forecasts: forecasts.true_positive_rate(rate),
        rule=MONITOR_RULE,
        method="interval: shares that some threshold explains by the clustered binomial distribution (after "
        "Claeskens et al. 2003)",
        sql="confidence_{kind}",
        order_measure=lambda forecasts: forecasts.rate_measure(rate),
    )


_TABLE = (
    _game_share(
        name=ACCURACY,
        description="share of right verdicts; a game without a verdict counts as wrong",
        over="all games that were not lost in transport",
        compute=lambda game: game.correct,
        rule=IntervalRule(fewest_clusters=0),  # a board ranks by it
        sql=_CORRECT,
        with_answers=True,
        has_worst=True,
        show=Show.SUMMARY | Show.COMPARISON | Show.CURVE | Show.COMPETITION,
    ),
    _game_share(
        name="accuracy_excluding_failures",  # a name of 0.1.0: failures are now only games that were lost in transport
        symbol="lost or undecided",
        description="share of right verdicts; lost and undecided games do not count",
        over="decided games",
        compute=lambda game: game.correct if game.is_decided else (),
        sql=f"CASE WHEN {_DECIDED} THEN {_CORRECT} END",
        with_answers=True,
    ),
    *(
        _game_share(
            name=f"accuracy_{label}",
            description=f"share of right verdicts on {solutions}",
            over=f"games with label {label}",
            compute=lambda game, label=label: game.correct if game.label == label else (),
            sql=_CORRECT,
            label=label,
            show=Show.CURVE | Show.COMPETITION,
        )
        for label, solutions in ((0, "wrong solutions"), (1, "right solutions"))
    ),
    _game_share(
        name="precision",
        description="share of right solutions among the accepted solutions",
        over="accepted games",
        compute=lambda game: game.truth(game.label == 1) if game.is_accepted and game.label is not None else (),
        sql="CASE WHEN decision = 1 THEN (y = 1)::INT::DOUBLE END",
        not_compared="two runs accept different solutions",
        show=Show.COMPETITION,
    ),
    _game_share(
        name="recall",
        description="share of accepted solutions among the right solutions with a verdict",
        over="decided games with label 1",
        compute=lambda game: game.truth(game.is_accepted) if game.label == 1 and game.is_decided else (),
        sql="CASE WHEN decision <> 2 THEN (decision = 1)::INT::DOUBLE END",
        label=1,
        not_compared="two runs decide different games; compare by completeness",
        show=Show.COMPETITION,
    ),
    _game_share(
        name="decided",
        description="share of games with a verdict",
        over="all games",
        compute=lambda game: game.truth(game.is_decided),
        needs_labels=False,
        sql=f"({_DECIDED})::INT::DOUBLE",
        with_answers=True,
        show=Show.SUMMARY | Show.COMPARISON | Show.CURVE | Show.COMPETITION,
    ),
    Metric(
        name=DECISION,
        description="mean decision: 0 reject, 1 accept, 2 none",
        over="all games",
        source=Source.GAMES,
        compute=lambda game: (float(game.decision),),
        unit="",
        high=2.0,
        better=0,
        needs_labels=False,
        two_values=lambda *_: (0.0, 1.0),
        sql="decision::DOUBLE",
        not_compared="2 stands for no decision, so a difference of means says nothing",
    ),
    Metric(
        name="worst_datapoint_accuracy",
        with_answers=True,
        description="lowest accuracy of a datapoint",
        over="datapoints, if each was played at least 5 times",
        source=Source.DATAPOINTS,
        compute=lambda verdicts: verdicts.worst_datapoint,
        rule=IntervalRule(never="the lowest of several has no interval"),
    ),
    _round_count(
        name="episode_length",
        description="number of rounds, counted as in the original implementation",
        compute=lambda game: (float(game.episode_length),),
    ),
    _round_count(
        name="rounds_played",
        description="number of rounds that were played",
        compute=lambda game: (float(game.rounds),),
        sql="rounds::DOUBLE",
        show=Show.COMPARISON,
    ),
    _agent_metric(
        name=REWARD,
        description="the agent's reward in a game",
        over="all games, by agent",
        compute=lambda agent: agent.reward,
        unit="",
        low=-math.inf,
        high=math.inf,
        two_values=_reward_values,
        sql="(rewards->>'{agent}')::DOUBLE",
        show=Show.CURVE,
    ),
    _call_count(
        name="retries_per_round",
        description="number of attempts after the first in a round; 0 if the agent is silent",
        over="all rounds, by agent",
        compute=lambda agent: agent.retries,
        unit="attempts",
    ),
    _agent_metric(
        name="token_limit_proportion",
        description="share of messages that were cut at the token limit",
        over="an agent's messages",
        compute=lambda agent: agent.cut,
        better=-1,
        is_proportion=True,
        needs_calls=True,
    ),
    _call_count(
        name="calls_per_message",
        description="number of calls for a message",
        over="an agent's messages",
        compute=lambda agent: agent.calls,
        unit="calls",
    ),
    _agent_metric(
        name="failed_selections",
        description="share of messages without a usable judgment of the candidates; the first one was delivered",
        over="an agent's messages with candidates (`best_of`)",
        compute=lambda agent: agent.failed_selections,
        better=-1,
        is_proportion=True,
        needs_calls=True,
        needs_candidates=True,
    ),
    _verdict_metric(
        name=BALANCED_ACCURACY,
        description="mean of the accuracies on right and on wrong solutions",
        over="all games",
        compute=lambda verdicts: verdicts.balanced_accuracy,
        is_proportion=True,
        rule=_NEEDS_BOTH_LABELS,
        method=f"interval: {_MOVER}",
        sql=_CORRECT,
        is_balanced=True,
        has_worst=True,
        show=Show.SUMMARY | Show.COMPETITION,
    ),
    _signal_metric(
        name=SENSITIVITY,
        description="d' of signal detection theory, z(H) - z(F), with half a game added to each count (Hautus 1995)",
        compute=lambda verdicts: verdicts.sensitivity,
        symbol="d'",
        exported_name="d_prime",  # elsewhere, sensitivity is the true positive rate
    ),
    _signal_metric(
        name=CRITERION,
        description="c of signal detection theory, -(z(H) + z(F)) / 2, with half a game added to each count",
        compute=lambda verdicts: verdicts.criterion,
        better=0,
        symbol="c",
    ),
    _verdict_share(
        name="completeness",
        description="share of right solutions that are accepted",
        over="games with label 1",
        compute=lambda verdicts: verdicts.accepted(1),
        sql=_ACCEPTED,
        label=1,
        has_worst=True,
        show=Show.SUMMARY | Show.COMPARISON,
    ),
    _verdict_share(
        name=SOUNDNESS_ERROR,
        description="share of wrong solutions that are accepted",
        over="games with label 0",
        compute=lambda verdicts: verdicts.accepted(0),
        better=-1,
        sql=_ACCEPTED,
        label=0,
        has_worst=True,
        show=Show.SUMMARY | Show.COMPARISON,
    ),
    *(
        _verdict_share(
            name=f"undecided_{label}",
            description="share of games without a verdict",
            over=f"games with label {label}",
            compute=lambda verdicts, label=label: verdicts.undecided(label),
            better=-1,
            sql="(decision = 2)::INT::DOUBLE",
            label=label,
            is_minor=True,
        )
        for label in (0, 1)
    ),
    _verdict_metric(
        name="pair_score",
        description="share of accepted right solutions times the share of rejected wrong solutions",
        over="groups (`dataset.group_by`) with right and wrong solutions, all with the same weight",
        compute=lambda verdicts: verdicts.pair_score if verdicts.grouped else None,
        method=f"interval: {_WILSON}",
    ),
    _verdict_metric(
        name="always_failed",
        with_answers=True,
        description="share of datapoints without any right verdict; more games per datapoint (`plays`) lower it",
        over="datapoints",
        compute=lambda verdicts: verdicts.always_failed,
        better=-1,
        depends_on_plays=True,
        method=f"interval: {_WILSON}",
        has_worst=True,
        show=Show.SUMMARY,
    ),
    _verdict_metric(
        name=MAJORITY_ACCURACY,
        description="vote@k for the largest odd k up to 99 (`plays`): how often the majority of k games is right, "
        "over all choices of k of a datapoint's games; a tie counts as half right",
        over="datapoints, if they were played at least 3 times",
        compute=lambda verdicts: verdicts.majority_accuracy,
        depends_on_plays=True,
        method=(
            "the majority of k plays, the largest odd k up to 99 that nine in ten datapoints were played as often as: "
            f"the mean over all choices of k plays, a tie of decided verdicts half right; interval: {_WILSON}"
        ),
        show=Show.COMPETITION,
    ),
    *(
        Metric(
            name=f"persuasion_{stance}",
            description=f"P(the verdict is {stance}, given that all provers argue for {stance})",
            over="datapoints played with both stances",
            source=Source.BLOCKS,
            compute=lambda verdicts, _, stance=stance: verdicts.persuaded(stance),
            better=0,
            method=f"interval: {_WILSON}",
        )
        for stance in (0, 1)
    ),
    _difference_of_shares(
        name="position_bias",
        description="P(the verdict is the first seat's stance) - P(it is the second seat's stance), the mean "
        "over both assignments of the stances and over both labels",
        over="games with provers of opposite stances",
        source=Source.BLOCKS,
        compute=lambda verdicts, first_seat: verdicts.position_bias(first_seat),
        better=0,
        rule=_NEEDS_BOTH_LABELS,
        method=(
            "P(verdict = stance of the first seat) - P(verdict = stance of the other), mean over both ways to give the "
            f"stances and both labels: P(accept) by the first seat's stance; interval: {_MOVER}"
        ),
    ),
    _difference_of_shares(
        name="swap_effect",
        description="P(accept) as the spec assigns the players - P(accept) with exchanged players",
        over="games with `seats: swap`",
        source=Source.BLOCKS,
        compute=lambda verdicts, _: verdicts.swap_effect,
        better=0,
    ),
    Metric(
        name="expected_score",
        description="P(the verdict is the player's stance), over both seats; a player is an entry of `agents`",
        over="each player",
        source=Source.PLAYERS,
        compute=lambda verdicts, stances: verdicts.agreement(stances),
        method=f"P(verdict = what the agent argues), of the entry of `agents` in either seat; interval: {_WILSON}",
    ),
    _difference_of_shares(
        name="score_difference",
        description="`expected_score` in games whose label is the player's stance, minus `expected_score` in the other "
        "games: the Agent Score Difference (arXiv 2504.03731) with the verdict as score",
        over="each player",
        source=Source.PLAYERS,
        compute=lambda verdicts, stances: verdicts.agreement_gain(stances),
        rule=_NEEDS_BOTH_LABELS,
    ),
    _difference_of_logs(
        name="score_difference_logprob",
        description="mean of ln P(the verdict is the player's stance) in games whose label is this stance, minus the "
        "mean in the other games: the Agent Score Difference (arXiv 2504.03731); P is limited to 0.001 to 0.999",
        over="each player, games with log-probabilities",
        source=Source.PLAYER_LOGPROBS,
        compute=lambda verdicts, stances, p: verdicts.log_probability_gain(stances, p),
        rule=_NEEDS_BOTH_LABELS,
    ),
    Metric(
        name="seat_score",
        description="P(the verdict is the seat's stance), over both players",
        over="each seat that is swapped",
        source=Source.SEATS,
        compute=lambda verdicts, stances: verdicts.agreement(stances),
        better=0,
        method=f"P(verdict = what the seat argues), over both players; interval: {_WILSON}",
    ),
    _judge_metric(
        name=JUDGE_ACCURACY,
        description="share of right verdicts of the judge; a game without its verdict counts as wrong",
        compute=lambda judge: judge.correct,
        is_proportion=True,
        sql=f"({_JUDGE_DECISION} = y)::INT::DOUBLE",
        has_worst=True,
        show=Show.SUMMARY,
    ),
    _judge_metric(
        name=JUDGE_ADVANTAGE,
        description="accuracy of the judge - accuracy of the panel, on the same games",
        compute=lambda judge: judge.advantage,
        unit="difference of shares",
        low=-1.0,
        sql=f"({_JUDGE_DECISION} = y)::INT::DOUBLE - correct::INT::DOUBLE",
    ),
    _judge_metric(
        name="panel_agreement",
        description="share of games in which the judge's verdict is the panel's decision",
        compute=lambda judge: judge.agrees,
        over="each judge, games in which both decided",
        is_proportion=True,
        better=0,
        needs_labels=False,
        sql=f"CASE WHEN decision <> 2 AND {_JUDGE_DECISION} <> 2 THEN ({_JUDGE_DECISION} = decision)::INT::DOUBLE END",
    ),
    *(
        _judge_metric(
            name=f"judge_brier_{kind}",
            description="Brier score of the judge's probability of accept",
            over="each judge, games with its probability",
            compute=lambda judge, kind=kind: judge.brier(kind),
            unit="",
            better=-1,
            kind=kind,
            rule=_FORECAST_RULE,
            sql=f"pow({_JUDGE_CONFIDENCE.replace('{kind}', kind)} - y, 2)",
        )
        for kind in CONFIDENCE_KINDS
    ),
    _forecast_metric(
        name="brier",
        description="Brier score, the mean of (p - y)²: 0 is best, 0.25 results if p is always 0.5",
        compute=lambda forecasts: forecasts.brier,
        better=-1,
        rule=_FORECAST_RULE,
        method=f"interval: {_WILSON}",
        sql="(confidence_{kind} - y) * (confidence_{kind} - y)",
        show=Show.COMPARISON | Show.COMPETITION,
    ),
    *(
        _forecast_metric(
            name=f"brier_{part}",
            description=f"{part} of the Brier score (Murphy 1973), over 10 bins of equal width",
            compute=lambda forecasts, part=part: forecasts.brier_part(part),
            better=better,
            rule=rule,
            method=method,
            is_minor=True,
        )
        for part, better, rule, method in (
            ("reliability", -1, IntervalRule(), _BINS),
            ("resolution", 1, IntervalRule(), _NORM),
            (
                "uncertainty",
                0,
                IntervalRule(never="it follows from the labels of the chosen datapoints, not from the judge"),
                "",
            ),
        )
    ),
    _forecast_metric(
        name="log_score",
        description="mean of -ln P(label); P is limited to 0.001 to 0.999",
        compute=lambda forecasts: forecasts.scaled_log_score,
        unit="nats",
        high=-math.log(0.001),
        better=-1,
        rule=_FORECAST_RULE,
        method=f"-ln P(label), P from 0.001 to 0.999; interval: {_WILSON}",
        not_compared="compare by the Brier score",
        is_minor=True,
    ),
    _forecast_metric(
        name="ece",
        description="expected calibration error, over 10 bins of equal width",
        compute=lambda forecasts: forecasts.calibration_error,
        better=-1,
        method=_BINS,
        show=Show.COMPETITION,
    ),
    *(
        _forecast_metric(
            name=name,
            description=description,
            compute=compute,
            better=-1,
            method=f"{bias}; {_BINS}",
            is_minor=True,
        )
        for name, description, compute, bias in (
            (
                "ece_corrected",
                "expected calibration error minus its upward bias",
                lambda forecasts: forecasts.corrected_calibration_error,
                "bias by the parametric bootstrap",
            ),
            (
                "brier_reliability_corrected",
                "reliability of the Brier score minus its upward bias (Bröcker 2012)",
                lambda forecasts: forecasts.corrected_reliability,
                "bias: the variance of the bins' gaps",
            ),
        )
    ),
    *(
        _forecast_metric(
            name=f"calibration_{part}",
            description=description,
            compute=lambda forecasts, part=part: getattr(forecasts, part),
            unit=unit,
            low=-math.inf,
            high=math.inf,
            better=0,
            method="logistic regression of labels on log odds (Cox 1958); interval: jackknife of clusters, Student's t "
            "for their effective number",
            is_minor=True,
        )
        for part, unit, description in (
            ("slope", "", "calibration slope: 1 if calibrated, below 1 if overconfident"),
            ("intercept", "log odds", "calibration intercept: 0 if calibrated, below 0 if it accepts too readily"),
        )
    ),
    _forecast_metric(
        name="auroc",
        description="P(p is larger for a right than for a wrong solution); ties count half",
        compute=lambda forecasts: forecasts.auroc,
        rule=MONITOR_RULE,
        method=f"Mann-Whitney, error clustered (Obuchowski 1997); interval: {_WILSON}",
        sql="confidence_{kind}",
        order_measure=lambda forecasts: forecasts.auroc_measure,
        show=Show.COMPETITION,
    ),
    *map(_true_positive_rate, FALSE_POSITIVE_RATES),
    Metric(
        name="no_score",
        description="share of games without a probability, such as refusals and unreadable answers",
        over="all games",
        source=Source.CONFIDENCES,
        compute=lambda verdicts, p: verdicts.without_score(p),
        better=-1,
        is_proportion=True,
        needs_labels=False,
        method=f"interval: {_WILSON}",
        sql="(confidence_{kind} IS NULL)::INT::DOUBLE",
    ),
    Metric(
        name="confidence_bounds_logprob",
        description="share of probabilities that are only bounds, because the server did not report enough tokens",
        over="games with log-probabilities",
        source=Source.LOGPROBS,
        compute=lambda verdicts, p, bound: verdicts.bounds(p, bound),
        better=-1,
        method=(
            "the share of probabilities that the top log-probabilities only bound; the bound is taken as the "
            f"probability; interval: {_WILSON}"
        ),
    ),
    Metric(
        name="confidence_disagreement",
        description="share of verdicts that are not the more probable verdict",
        over="decided games with log-probabilities",
        source=Source.LOGPROBS,
        compute=lambda verdicts, p, _: verdicts.disagreement(p),
        better=-1,
        method=f"interval: {_WILSON}",
    ),
    _answer_metric(
        name="answer_log_score",
        description="mean of -ln P(right answers); P is limited to 0.001 to 0.999",
        source=Source.GAMES,
        compute=lambda game: game.answer_log_score,
        unit="nats",
        high=-math.log(0.001),
        better=-1,
        rule=_FORECAST_RULE,
        sql="-ln(greatest(least(p_right, 0.999), 0.001))",
        show=Show.SUMMARY | Show.COMPARISON,
    ),
    _answer_metric(
        name="answer_brier",
        description="multi-class Brier score, the mean of the sum over answers of (p - y)²; several right answers "
        "count as one",
        source=Source.GAMES,
        compute=lambda game: game.answer_brier,
        unit="",
        high=2.0,
        better=-1,
        rule=_FORECAST_RULE,
        sql="answer_brier",
        show=Show.SUMMARY | Show.COMPARISON,
    ),
    _answer_error(
        name="answer_ece",
        description="expected calibration error of the chosen answer's probability, over 10 bins of equal width",
        compute=lambda forecasts: forecasts.calibration_error,
        method=_BINS,
    ),
    _answer_error(
        name="answer_ece_corrected",
        description="`answer_ece` minus its upward bias",
        compute=lambda forecasts: forecasts.corrected_calibration_error,
        method=f"bias by the parametric bootstrap; {_BINS}",
        is_minor=True,
    ),
    Metric(
        name="win_rate",
        description="P(the verdict is the answer that the player argues for)",
        over="each player that argues for an answer",
        source=Source.ANSWER_PLAYERS,
        compute=lambda argued: argued.win_rate,
        better=0,
        only_answers=True,
        method=f"of the entry of `agents` in either seat; interval: {_WILSON}",
    ),
    _difference_of_shares(
        name="answer_score_difference",
        description="`win_rate` if the player's answer is right, minus `win_rate` if it is wrong: the Agent Score "
        "Difference (arXiv 2504.03731) with the verdict as score",
        over="each player that argues for right and for wrong answers",
        source=Source.ANSWER_PLAYERS,
        compute=lambda argued: argued.score_difference,
        only_answers=True,
    ),
    _difference_of_logs(
        name="answer_score_difference_log",
        description="mean ln P(the player's answer) if this answer is right, minus this mean if it is wrong: the Agent "
        "Score Difference (arXiv 2504.03731); P is limited to 0.001 to 0.999",
        over="each player, games with a probability for each answer",
        source=Source.ANSWER_PLAYERS,
        compute=lambda argued: argued.log_score_difference,
        only_answers=True,
    ),
    *(
        Metric(
            name=name,
            description=description,
            over="all games",
            source=Source.CALLS,
            unit=unit,
            high=math.inf,
            better=-1,
            needs_calls=True,
            with_answers=True,
            sql=name,
            show=Show.COMPARISON,
        )
        for name, description, unit in (
            (CALLS, "answered calls of a game", "calls"),
            (TOKENS, "prompt and answer tokens of a game", "tokens"),
            (COST, "cost of a game, at the prices of the run's start", "US dollars"),
        )
    ),
)


def _for_each_kind(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Yield each metric, and each metric of probabilities once for each kind, with the kind in its name."""
    for has_kinds, group in groupby(metrics, key=lambda metric: metric.source in _KIND_SOURCES):
        if not has_kinds:
            yield from group
            continue
        for kind, metric in product(CONFIDENCE_KINDS, group):
            yield replace(metric, name=f"{metric.name}_{kind}", kind=kind, sql=metric.sql.replace("{kind}", kind))


METRICS: dict[str, Metric] = {metric.name: metric for metric in _for_each_kind(_TABLE)}
"""The metrics by name, in display order. Options name the metric of an agent `AGENT.NAME`."""


def metrics_of(*sources: Source, kind: str | None = None) -> Iterator[Metric]:
    """Yield the metrics of these sources, only those of one kind of confidence if `kind` is given."""
    return (metric for metric in METRICS.values() if metric.source in sources and kind in (None, metric.kind))


def metrics_shown(place: Show) -> list[str]:
    """Return the names of the metrics that a place shows."""
    return [metric.name for metric in METRICS.values() if place in metric.show]


def game_shares() -> list[str]:
    """Return the names of the metrics that are shares of games or datapoints, without minor ones."""
    sources = (Source.GAMES, Source.VERDICTS)
    return [metric.name for metric in metrics_of(*sources) if metric.unit == "share" and not metric.is_minor]


def find_metric(name: str) -> Metric | None:
    """Return the metric with this name, which is `AGENT.NAME` for a metric of an agent; None if there is none."""
    agent, _, base_name = name.rpartition(".")
    metric = METRICS.get(base_name)
    if metric is None or metric.is_per_agent != bool(agent):
        return None
    if not agent:
        return metric
    return replace(metric, name=name, agent=agent, sql=metric.sql.replace("{agent}", agent.replace("'", "''")))


def option_names(agents: Iterable[str], *, compared: bool = False) -> list[str]:
    """Return the names that an option accepts for runs of these agents; with `compared`, for `nip-run compare`."""
    metrics = [m for m in METRICS.values() if (m.is_compared if compared else m.source is not Source.CALLS)]
    return [
        *(metric.name for metric in metrics if not metric.is_per_agent),
        *(f"{agent}.{metric.name}" for agent in agents for metric in metrics if metric.is_per_agent),
    ]


def check_metrics(names: Iterable[str], measured: Collection[str], agents: Collection[str]) -> None:
    """Check that runs of these agents can have metrics of these names. Without agents, an `AGENT.` may be any agent.

    `measured` has further names that are valid, since runs have metrics of these names.

    Raises:
        UsageError: no run can have a metric of such a name.
    """
    available = list(dict.fromkeys((*option_names(sorted(agents)), *sorted(measured))))
    for name in names:
        if name not in available and not ("." in name and not agents and find_metric(name) is not None):
            hint = did_you_mean(name, available) or f"; choose one of: {comma_join(available)}"
            raise UsageError(f"no metric {name!r}{hint}")


def compared_metric(name: str, agents: Collection[str], *, lists_answers: bool | None = None) -> Metric:
    """Return a metric that runs of these agents are compared by. Errors name metrics for `lists_answers`, if given.

    Raises:
        UsageError: no metric has this name, or runs are not compared by it.
    """
    names = option_names(agents, compared=True)
    metric = find_metric(name)
    if name in names and metric is not None:
        return metric
    if lists_answers is not None:
        metrics = {option: find_metric(option) for option in names}
        names = [option for option, m in metrics.items() if m is None or m.applies(lists_answers=lists_answers)]
    if metric is not None and metric.why_not_compared and metric.agent in (None, *agents):
        raise UsageError(
            f"runs are not compared by {name!r}: {metric.why_not_compared}. Compare by: {comma_join(names)}"
        )
    from runner.spec.plugins import METRIC_PLUGINS

    names = list(dict.fromkeys([*names, *METRIC_PLUGINS.installed_names()]))
    hint = did_you_mean(name, names) or f"; choose one of: {comma_join(names)}"
    raise UsageError(f"no metric {name!r} to compare by{hint}")


def exported_name(agent: str | None, name: str) -> str:
    """Return the name of a metric in other tools: `METRIC`, or `AGENT.METRIC` for a metric of one agent."""
    metric = METRICS.get(name)
    exported = name if metric is None else metric.exported_name or name
    return exported if agent is None else f"{agent}.{exported}"
