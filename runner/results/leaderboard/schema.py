"""The tables and views of the leaderboard, and the comments on their columns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from runner.base.token_classes import NEW_TOKEN_CLASSES
from runner.results.leaderboard.unranked import Unranked

if TYPE_CHECKING:
    import duckdb

BOARD_TABLES = ("runs", "agents", "metrics", "rollouts", "datapoints", "ranks", "rank_tests")

NEW_RUN_COLUMNS: Mapping[str, str] = {
    "training": "JSON", "point": "VARCHAR", "split": "VARCHAR", "filter": "VARCHAR", "limit": "BIGINT",
    "balance": "VARCHAR", "shuffle": "BOOLEAN", "group_by": "VARCHAR", "template_columns": "VARCHAR",
    "per_datapoint": "BIGINT", "responses_per_step": "INTEGER", "failures": "BIGINT", "transport_failed": "BIGINT",
    "invalid_response": "BIGINT", "refused": "BIGINT", "context_exceeded": "BIGINT", "no_decision": "BIGINT",
    "max_transport_failed": "DOUBLE", "replay_of": "VARCHAR", "replay_until_round": "INTEGER", "task": "VARCHAR",
    "dataset_content_sha256": "VARCHAR", "dataset_source_sha256": "VARCHAR", "prompts_sha256": "VARCHAR",
    "protocol_sha256": "VARCHAR", "until": "JSON", "stopped": "VARCHAR", "rejudge_of": "VARCHAR",
    "fixed_verdicts": "VARCHAR", "journal": "VARCHAR", "answers_from": "JSON", "published": "BIGINT",
    **dict.fromkeys(NEW_TOKEN_CLASSES, "BIGINT"), "earlier_task": "VARCHAR", "analysis_of": "VARCHAR",
}  # fmt: skip
"""The columns of `runs` added after 0.1.0, in their order in the table."""

NEW_ROLLOUT_COLUMNS: Mapping[str, str] = {
    "swapped": "BOOLEAN",
    "confidence_stated": "DOUBLE", "confidence_logprob": "DOUBLE", "confidence_note": "VARCHAR",
    "votes": "JSON", "verdicts": "JSON", "stances_exchanged": "BOOLEAN", "panel": "JSON",
    "answer": "VARCHAR", "right_answers": "JSON", "answer_order": "JSON", "argued_answers": "JSON",
    "answer_scores": "JSON", "p_right": "DOUBLE", "answer_brier": "DOUBLE",
    "judged_text": "VARCHAR", "statements": "JSON", "plugin_metrics": "JSON",
}  # fmt: skip
"""The columns of `rollouts` added after 0.1.0."""

NEW_METRIC_COLUMNS: Mapping[str, str] = {"reason": "VARCHAR"}
"""The columns of `metrics` added after 0.1.0."""

NEW_COLUMNS = {"runs": NEW_RUN_COLUMNS, "rollouts": NEW_ROLLOUT_COLUMNS, "metrics": NEW_METRIC_COLUMNS}

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    run_id VARCHAR PRIMARY KEY, name VARCHAR, kind VARCHAR, benchmark VARCHAR, protocol VARCHAR, status VARCHAR,
    seed BIGINT, spec_sha256 VARCHAR, spec JSON, version VARCHAR, git_commit VARCHAR, git_dirty BOOLEAN,
    parent_run_id VARCHAR, iteration INTEGER, started_at TIMESTAMP, finished_at TIMESTAMP, rollouts BIGINT,
    completions BIGINT, prompt_tokens BIGINT, completion_tokens BIGINT, cached_tokens BIGINT, cost_usd DOUBLE,
    dataset_sha256 VARCHAR, game_sha256 VARCHAR, outcomes JSON
);
CREATE TABLE IF NOT EXISTS agents (
    run_id VARCHAR, agent VARCHAR, role VARCHAR, model_group VARCHAR, provider VARCHAR, model VARCHAR,
    base_model VARCHAR
);
CREATE TABLE IF NOT EXISTS metrics (
    run_id VARCHAR, agent VARCHAR, metric VARCHAR, value DOUBLE, stderr DOUBLE, ci_low DOUBLE, ci_high DOUBLE,
    n BIGINT, clusters BIGINT
);
CREATE TABLE IF NOT EXISTS rollouts (
    run_id VARCHAR, rollout_id VARCHAR, datapoint_id VARCHAR, repeat INTEGER, seed BIGINT, y TINYINT, stance TINYINT,
    decision TINYINT, correct BOOLEAN, outcome VARCHAR, rounds INTEGER, rewards JSON, error VARCHAR
);
CREATE TABLE IF NOT EXISTS datapoints (
    run_id VARCHAR, datapoint_id VARCHAR, "group" VARCHAR, label TINYINT, content_sha256 VARCHAR, columns JSON
);
CREATE TABLE IF NOT EXISTS ranks (run_id VARCHAR, rank INTEGER, rank_last INTEGER);
CREATE TABLE IF NOT EXISTS rank_tests (leader VARCHAR, run_id VARCHAR, p DOUBLE);
"""

_SELECTION = ("split", "limit", "filter", "balance", "shuffle", "group_by")
"""The columns of `runs` about the selection of datapoints. The reason why a run has another task names differences."""

LOST_TOO_MANY_SQL = "r.transport_failed > coalesce(r.max_transport_failed, 0) * r.rollouts * (1 + 1e-9)"
"""SQL for whether a run lost too many rollouts. It needs the counts, since runs of 0.1.0 have no status for this."""

UNRANKED_SQL = f"""
CASE
    WHEN r.status = 'failed' THEN {Unranked.FAILED.sql()}
    WHEN r.status NOT IN ('done', 'incomplete') THEN {Unranked.UNFINISHED.sql(status="r.status")}
    WHEN r.status = 'incomplete' OR {LOST_TOO_MANY_SQL}
        THEN {Unranked.LOST_ROLLOUTS.sql(lost="r.transport_failed", rollouts="r.rollouts")}
    WHEN r.replay_of IS NOT NULL
        THEN {Unranked.REPLAY.sql(run="r.replay_of")} || coalesce(' until round ' || r.replay_until_round, '')
    WHEN r.rejudge_of IS NOT NULL THEN {Unranked.REJUDGED.sql(run="r.rejudge_of")}
    WHEN r.analysis_of IS NOT NULL THEN {Unranked.ANALYSIS.sql(run="r.analysis_of")}
    WHEN r.fixed_verdicts IS NOT NULL THEN r.fixed_verdicts
    WHEN r.responses_per_step IS NOT NULL THEN {Unranked.TREE.sql()}
    WHEN r.task IS NULL THEN {Unranked.UNKNOWN_TASK.sql()}
    WHEN m.value IS NULL AND m.reason = 'no labels' THEN {Unranked.NO_LABELS.sql()}
    WHEN m.value IS NULL AND r.outcomes::VARCHAR = '{{}}' THEN {Unranked.NO_METRICS.sql()}
    WHEN m.value IS NULL THEN {Unranked.NO_VERDICT.sql()}
END
"""
"""SQL for the reason why a run is unranked regardless of other runs, or NULL; `r` is its row, and `m` its accuracy."""


def _difference_sql(name: str) -> str:
    """Return SQL that describes how a column of a run differs from the runs of its list; NULL if it does not."""
    row, listed = (f"coalesce({alias}.\"{name}\"::VARCHAR, 'none')" for alias in ("o", "l"))
    differs = f"{row} <> {listed}"
    if name == "shuffle":  # the order of datapoints matters only if some are left out
        differs += """ AND (coalesce(o."limit", l."limit") IS NOT NULL OR 'label' IN (o.balance, l.balance))"""
    return f"CASE WHEN {differs} THEN '{name} ' || {row} || ' (this list: ' || {listed} || ')' END"


_DIFFERENCES = ", ".join(map(_difference_sql, _SELECTION))
_LIST_COLUMNS = ", ".join(
    f'arg_min({{"v": r."{name}"}}, r.run_id).v AS "{name}"' for name in (*_SELECTION, "template_columns")
)
"""SQL that takes each column from one run of a list. Unlike other aggregates, it does not skip nulls."""

_ORIGINS = """
counted AS (
    SELECT run_id, journal, rollouts - coalesce(transport_failed, 0) AS verdicts,
        coalesce(answers_from, '{}')::MAP(VARCHAR, BIGINT) AS copied
    FROM runs WHERE kind = 'benchmark' AND status IN ('done', 'incomplete')
), copied AS (
    SELECT run_id, unnest(map_keys(copied)) AS origin, unnest(map_values(copied)) AS answers FROM counted
), own AS (
    SELECT run_id, journal, greatest(verdicts - coalesce(list_sum(map_values(copied)), 0), 0)::BIGINT AS answers,
        answers / verdicts AS share
    FROM counted
), origins AS (
    FROM copied
    UNION ALL SELECT run_id, journal, answers FROM own WHERE journal IS NOT NULL
    UNION ALL SELECT run_id, run_id, answers FROM own
)
"""
"""SQL for the number of answers that each run has from each origin: a journal, or a run whose journal is unknown."""


def _pairs_sql(others: str) -> str:
    """Return SQL for the number of verdicts that each run shares with each run of `others`, rows of `origins`."""
    return f"""
SELECT
    a.run_id, b.run_id AS other, least(sum(least(a.answers, b.answers)), any_value(c.verdicts))::BIGINT AS shared,
    any_value(c.verdicts) AS verdicts, any_value(oa.share) AS own_share, any_value(ob.share) AS other_own_share
FROM origins a JOIN {others} b ON b.origin = a.origin AND b.run_id <> a.run_id
JOIN counted c ON c.run_id = a.run_id JOIN own oa ON oa.run_id = a.run_id JOIN own ob ON ob.run_id = b.run_id
GROUP BY a.run_id, b.run_id HAVING shared > 0
"""


_SHARED_ANSWERS = f"CREATE OR REPLACE VIEW shared_answers AS WITH {_ORIGINS} {_pairs_sql('origins')};"
"""SQL for the number of verdicts of two runs that come from the same answers (at most, if both copied a third run)."""

_SHARING_SQL = f"""
WITH {_ORIGINS}, finished AS (
    SELECT r.*, {UNRANKED_SQL} AS unranked_reason
    FROM runs r LEFT JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
), held AS (
    SELECT run_id, list((origin, answers) ORDER BY origin, answers) AS held
    FROM (FROM origins QUALIFY count(*) OVER (PARTITION BY origin) > 1) GROUP BY run_id
), first_runs AS (
    SELECT run_id FROM held JOIN own USING (run_id) JOIN finished USING (run_id)
    QUALIFY 2 >= row_number() OVER (
        PARTITION BY held, share, task, unranked_reason IS NULL ORDER BY coalesce(published, -1), started_at, run_id
    )
), shared AS ({_pairs_sql("(FROM origins SEMI JOIN first_runs USING (run_id))")}), judged AS (
    SELECT s.*, (coalesce(b.published, -1), -s.other_own_share, b.started_at, b.run_id) AS precedence,
        {Unranked.SHARED_ANSWERS.sql(shared="s.shared", verdicts="s.verdicts", other="s.other")} AS explanation,
        s.shared * 2 > s.verdicts AND b.unranked_reason IS NULL AND b.task = a.task
            AND precedence < (coalesce(a.published, -1), -s.own_share, a.started_at, a.run_id) AS is_source
    FROM shared s JOIN finished a ON a.run_id = s.run_id JOIN finished b ON b.run_id = s.other
)
SELECT
    run_id, arg_min(explanation, precedence) FILTER (is_source) AS reason,
    coalesce(arg_min(other, precedence) FILTER (is_source), arg_max(other, (shared, other_own_share))) AS source,
    coalesce(arg_min(shared, precedence) FILTER (is_source), max(shared)) AS shared
FROM judged GROUP BY run_id
"""
"""SQL for the source of each run that shares answers: a run with precedence that has more than half of these answers,
and the reason why the run is unranked; without such a source, the run with the most answers in common, and no reason.

Of two such runs, the run that was published first has precedence, if a server knows the order; otherwise the run with
the larger share of its own answers; otherwise the run that started first. Runs with the same numbers of answers from
the same origins are alike, so each run is joined with only two of these. Copies then take no quadratic time.
"""

_COPIES = f"""
CREATE OR REPLACE VIEW copies AS
SELECT run_id, source, shared, reason FROM ({_SHARING_SQL}) WHERE reason IS NOT NULL;
"""
"""SQL for runs that share more than half of their answers with a run that takes precedence over them."""

LEADERBOARD_SQL = f"""
WITH measured AS (
    SELECT r.*, m.value AS accuracy, m.ci_low, m.ci_high, m.stderr, m.n, m.clusters, a.models,
        coalesce({UNRANKED_SQL}, s.reason) AS unranked_reason, s.source AS shared_with, s.shared
    FROM runs r
    LEFT JOIN ({_SHARING_SQL}) s ON s.run_id = r.run_id
    LEFT JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
    LEFT JOIN (
        SELECT run_id, string_agg(agent || '=' || model, ', ' ORDER BY agent) AS models FROM agents GROUP BY run_id
    ) a ON a.run_id = r.run_id
    WHERE r.kind = 'benchmark' AND r.analysis_of IS NULL
), tasks AS (
    SELECT
        benchmark, task, min(run_id) AS first_run, count(*) FILTER (unranked_reason IS NULL) AS comparable,
        row_number() OVER (
            PARTITION BY benchmark
            ORDER BY comparable DESC, count(*) DESC, max(coalesce("limit", 'infinity'::DOUBLE)) DESC,
                min(started_at), task
        ) AS place
    FROM measured GROUP BY benchmark, task
), lists AS (
    SELECT t.benchmark, t.task, t.place, t.first_run, {_LIST_COLUMNS}
    FROM tasks t JOIN measured r ON r.benchmark = t.benchmark AND r.task IS NOT DISTINCT FROM t.task
    WHERE t.place = 1 OR t.comparable > 1
    GROUP BY ALL
), listed AS MATERIALIZED (
    SELECT o.*, l.place AS list, o.task IS NOT DISTINCT FROM l.task AS is_internal, l.template_columns AS their_columns,
        l.first_run, concat_ws(', ', {_DIFFERENCES}) AS differences,
        CASE WHEN differences = '' THEN '' ELSE '; settings that also differ: ' || differences END AS settings
    FROM measured o JOIN lists l ON l.benchmark = o.benchmark AND l.place = coalesce(
        (SELECT own.place FROM lists own WHERE own.benchmark = o.benchmark AND own.task = o.task), 1
    )
), differing AS (
    SELECT run, datapoint_id, count(*) = 1 OR count(DISTINCT {{l: label, c: content_sha256}}) > 1 AS is_seen
    FROM (
        SELECT run_id AS run, unnest([run_id, first_run]) AS played_by FROM listed
        WHERE NOT is_internal AND unranked_reason IS NULL AND coalesce(template_columns = their_columns, true)
    ) JOIN datapoints ON datapoints.run_id = played_by
    GROUP BY run, datapoint_id HAVING is_seen OR count(DISTINCT "group") > 1
), examples AS (
    SELECT run, arg_min(datapoint_id, (NOT is_seen, datapoint_id)) AS example FROM differing GROUP BY run
)
SELECT
    benchmark, o.run_id, name, protocol, accuracy, ci_low, ci_high, stderr, n, clusters, outcomes, models, cost_usd,
    finished_at, spec_sha256, dataset_sha256, game_sha256, version,
    CASE WHEN unranked_reason IS NULL AND is_internal THEN k.rank END AS rank,
    CASE
        WHEN unranked_reason IS NOT NULL THEN unranked_reason
        WHEN NOT is_internal AND template_columns <> their_columns
            THEN {Unranked.OTHER_COLUMNS.sql(columns="template_columns", others="their_columns", settings="settings")}
        WHEN NOT is_internal
            THEN {Unranked.OTHER_DATAPOINTS.sql(datapoint="coalesce(example, 'unknown ones')", settings="settings")}
    END AS reason,
    list, task, status, failures, seed, point, split, "limit", filter, group_by, per_datapoint, replay_of,
    transport_failed, invalid_response, refused, context_exceeded, no_decision, started_at, stopped, rejudge_of,
    CASE WHEN unranked_reason IS NULL AND is_internal THEN k.rank_last END AS rank_last,
    o.shared_with, o.shared, earlier_task
FROM listed o LEFT JOIN ranks k ON k.run_id = o.run_id LEFT JOIN examples e ON e.run = o.run_id
ORDER BY benchmark, list, rank NULLS LAST, accuracy DESC NULLS LAST, o.run_id
"""
"""SQL for the rows of the view `leaderboard`. nip-run uses it instead of the view, which takes long to create."""

_SHARES_SQL = """
    SELECT
        r.run_id, u.task, r.datapoint_id, d."group", d.label, avg(r.correct::INT) AS accuracy,
        count(*) AS plays, coalesce(var_samp(r.correct::INT), 0) AS variance,
        any_value(u.stopped) IS NOT NULL AS stopped, any_value(u.game_sha256) AS game,
        arg_min(r.rollout_id, r.repeat) FILTER (r.correct) AS right_rollout,
        arg_min(r.rollout_id, r.repeat) FILTER (NOT r.correct) AS wrong_rollout
    FROM rollouts r
    JOIN runs u ON u.run_id = r.run_id
    JOIN datapoints d ON d.run_id = r.run_id AND d.datapoint_id = r.datapoint_id
    WHERE r.correct IS NOT NULL AND u.task IS NOT NULL
    GROUP BY r.run_id, u.task, r.datapoint_id, d."group", d.label
"""
"""SQL for the share of right verdicts on each datapoint in each run."""

_JOIN = "shares a JOIN shares b ON b.task = a.task AND b.datapoint_id = a.datapoint_id AND b.run_id <> a.run_id"

_FLIPS = f"""
CREATE OR REPLACE VIEW flips AS
WITH shares AS ({_SHARES_SQL})
SELECT
    a.run_id AS run_a, b.run_id AS run_b, a.datapoint_id, a."group", a.label,
    CASE WHEN a.accuracy > b.accuracy THEN a.run_id ELSE b.run_id END AS right_in,
    a.accuracy AS accuracy_a, b.accuracy AS accuracy_b,
    CASE WHEN a.accuracy > 0.5 THEN a.right_rollout ELSE a.wrong_rollout END AS rollout_a,
    CASE WHEN b.accuracy > 0.5 THEN b.right_rollout ELSE b.wrong_rollout END AS rollout_b,
    a.task
FROM {_JOIN}
WHERE (a.accuracy - 0.5) * (b.accuracy - 0.5) < 0;
"""

_RATINGS = """
CREATE OR REPLACE VIEW ratings AS
SELECT
    run_id, agent AS player,
    CASE metric WHEN 'rating' THEN 'overall' WHEN 'rating_right' THEN 'right' ELSE 'wrong' END AS side,
    value, stderr, ci_low, ci_high, n, clusters, reason
FROM metrics WHERE metric IN ('rating', 'rating_right', 'rating_wrong');
"""

VIEWS = {
    "shared_answers": _SHARED_ANSWERS, "copies": _COPIES,
    "leaderboard": f"CREATE OR REPLACE VIEW leaderboard AS {LEADERBOARD_SQL};", "flips": _FLIPS,
    "ratings": _RATINGS,
}  # fmt: skip
"""The SQL that creates each view, after the views that it reads."""

COMPARISON_COLUMNS: Mapping[str, str] = {
    "run_a": "VARCHAR", "run_b": "VARCHAR", "task": "VARCHAR", "accuracy_a": "DOUBLE", "accuracy_b": "DOUBLE",
    "difference": "DOUBLE", "stderr": "DOUBLE", "ci_low": "DOUBLE", "ci_high": "DOUBLE", "p": "DOUBLE",
    "detectable": "DOUBLE", "datapoints": "BIGINT", "groups": "BIGINT", "differing": "BIGINT",
    "reason": "VARCHAR",
}  # fmt: skip
"""The columns of the view `comparisons`. Only nip-run can create it, since it needs the function `paired_test`."""

TEST_COLUMNS: Mapping[str, str] = {
    name: COMPARISON_COLUMNS[name]
    for name in ("difference", "stderr", "ci_low", "ci_high", "p", "detectable", "groups", "differing")
}
"""The columns of `comparisons` that the SQL function `paired_test` computes."""

GROUP_TERMS_SQL = """
        count(*)::DOUBLE AS size, sum(b.accuracy - a.accuracy) AS difference,
        sum(
            a.variance * (1 / least(a.plays, b.plays) - 1 / a.plays)
            + b.variance * (1 / least(a.plays, b.plays) - 1 / b.plays)
        ) AS missing_variance,
        min((1 + least(a.plays, b.plays) / greatest(a.plays, b.plays)) / 2) AS least_share,
        min(least(a.plays, b.plays)) AS fewest
"""
"""SQL for the terms of the test that compares systems a and b, in one group of datapoints."""

PAIR_TERMS_SQL = """
            list(difference ORDER BY "group"), list(size ORDER BY "group"), list(missing_variance ORDER BY "group"),
            list(least_share ORDER BY "group"), count(*) / (sum(size) * min(fewest))
"""
"""SQL for the arguments of `paired_test`, aggregated over groups."""


def _comparison_column_sql(name: str) -> str:
    """Return SQL for a column of `comparisons`. As in `compare`, two runs that share answers are not tested."""
    if name in ("p", "detectable"):
        return f"CASE WHEN is_one_system OR NOT is_fair THEN NULL ELSE t.{name} END AS {name}"
    if name in ("stderr", "ci_low", "ci_high"):
        return f"CASE WHEN is_fair THEN t.{name} END AS {name}"
    if name == "reason":
        return "nullif(reasons, '') AS reason"
    return f"t.{name} AS {name}" if name in TEST_COLUMNS else name


COMPARISONS = f"""
CREATE VIEW comparisons AS
WITH shares AS ({_SHARES_SQL}), grouped AS (
    SELECT
        a.run_id AS run_a, b.run_id AS run_b, a.task, a."group", sum(a.accuracy) AS right_a,
        sum(b.accuracy) AS right_b, bool_or(a.stopped OR b.stopped) AS stopped,
        bool_or(a.game = b.game) AS is_one_system, {GROUP_TERMS_SQL}
    FROM {_JOIN}
    GROUP BY a.run_id, b.run_id, a.task, a."group"
), tested AS (
    SELECT
        run_a, run_b, task, sum(right_a) / sum(size) AS accuracy_a, sum(right_b) / sum(size) AS accuracy_b,
        sum(size)::BIGINT AS datapoints, bool_or(is_one_system) AS is_one_system,
        paired_test({PAIR_TERMS_SQL}, bool_or(stopped)) AS t
    FROM grouped GROUP BY run_a, run_b, task
), samples AS (
    SELECT r.run_id, r.fixed_verdicts, r.run_id || ': ' || coalesce({UNRANKED_SQL}, c.reason) AS unranked_reason,
        coalesce(CASE WHEN r.replay_until_round IS NULL THEN r.replay_of END, r.run_id) AS answers
    FROM runs r LEFT JOIN copies c ON c.run_id = r.run_id
    LEFT JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
), pairs AS (
    SELECT tested.*, concat_ws('; ', a.unranked_reason, b.unranked_reason) AS reasons,
        a.fixed_verdicts IS NULL AND b.fixed_verdicts IS NULL AND a.answers <> b.answers
            AND coalesce(s.shared * 2 <= least(s.verdicts, o.verdicts), true) AS is_fair
    FROM tested JOIN samples a ON a.run_id = run_a JOIN samples b ON b.run_id = run_b
    LEFT JOIN shared_answers s ON s.run_id = run_a AND s.other = run_b
    LEFT JOIN shared_answers o ON o.run_id = run_b AND o.other = run_a
)
SELECT {", ".join(map(_comparison_column_sql, COMPARISON_COLUMNS))} FROM pairs;
"""

ANALYZED_ROLLOUT_COLUMNS: Mapping[str, str] = {
    "analyzer": "VARCHAR", "instrument": "VARCHAR", "units": "BIGINT", "answered": "BIGINT", "value": "DOUBLE",
    "answers": "VARCHAR[]",
}  # fmt: skip
"""The columns that the view `analyzed_rollouts` adds to those of `rollouts`."""

ANALYZED_ROLLOUTS = """
CREATE VIEW analyzed_rollouts AS
SELECT r.*, a.analyzer, a.instrument, a.units, a.answered, a.value, a.answers
FROM rollouts r JOIN (
    SELECT
        run_id, rollout_id, analyzer, instrument, count(*) FILTER (status <> 'not_applicable') AS units,
        count(answer) AS answered, avg(value) AS value, list(answer ORDER BY unit_id) AS answers
    FROM analyses GROUP BY ALL
) a USING (run_id, rollout_id);
"""
"""SQL for the rollouts with the answers of each instrument."""

_VERDICT = "0: reject (the solution is wrong), 1: accept (it is right), 2: none"

_TOKEN_COMMENTS = {
    "cache_write_tokens": "prompt tokens that the provider wrote to its cache; NULL: none were reported",
    "reasoning_tokens": "the part of the answer tokens that is reasoning; NULL: none were reported",
    "audio_input_tokens": "the part of the prompt tokens that is audio; NULL: none were reported",
    "audio_output_tokens": "the part of the answer tokens that is audio; NULL: none were reported",
}

COMMENTS: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "kind": "benchmark: measures models; training: a training run, or the run with the games of an iteration; "
        "tournament: rates players",
        "status": "running, done, incomplete (too many rollouts were lost in transport), failed or interrupted",
        "spec": "the resolved spec, with all defaults",
        "git_commit": "the commit of the repository with the spec; NULL: the spec is not in a repository",
        "git_dirty": "whether the repository or the spec itself had uncommitted changes",
        "parent_run_id": "the training run or tournament that this run is a part of",
        "iteration": "the iteration of that training run, or the pairing of that tournament, from 0",
        "completions": "number of answered calls of models",
        "cached_tokens": "prompt tokens that the provider read from its cache",
        "cost_usd": "cost in US dollars; NULL: the price of a model is unknown",
        "outcomes": "number of rollouts with each outcome",
        "training": "the result of each model group's training",
        "point": "the settings of the sweep for this run, as overrides",
        "limit": 'dataset.limit; NULL: all datapoints (quote it: "limit")',
        "per_datapoint": "number of games about each datapoint",
        "responses_per_step": "number of answers at each step of a tree; NULL: ordinary games",
        "failures": "deprecated, mixes lost and undecided games: transport_failed + invalid_response + refused "
        "+ context_exceeded; use these columns and no_decision",
        "transport_failed": "rollouts lost because their calls failed; they have no verdict and are in no metric",
        "no_decision": "rollouts that ended without a verdict",
        "max_transport_failed": "the maximum share of rollouts that may be lost in transport",
        "template_columns": "the columns of the dataset that the verifier's templates use",
        "replay_of": "the run whose answers this run replays",
        "replay_until_round": "only the rounds before this round are replayed; NULL: all",
        "rejudge_of": "the run whose debates this run judges again",
        "analysis_of": "the run whose transcripts this run asks a question about",
        "fixed_verdicts": "why the verdicts are not those of the verifier, such as force_guess; NULL: they are",
        "journal": "the unique number of the run's journal",
        "answers_from": "number of verdicts with answers of other runs, by journal number or run_id; NULL: unknown",
        "published": "on a server: the run's position in the order of publication",
        **_TOKEN_COMMENTS,
        "task": "from dataset_content_sha256 and the metric; runs with the same task are comparable",
        "until": "the rule that stops the run early: width of the interval, or comparison with a run; NULL: none",
        "stopped": "when and how `until` stopped this run, or the run whose debates it judges",
        "dataset_sha256": "hash of the selected datapoints with all columns, in the order of play",
        "dataset_content_sha256": "hash of labels, groups and the columns that the verifier sees, in any order",
        "earlier_task": "the task before version 0.2, if different: it included columns that only provers see",
        "dataset_source_sha256": "hash of the dataset's file",
        "prompts_sha256": "hash of all templates",
        "protocol_sha256": "hash of the rules and parameters; it depends on the version, so join on game_sha256",
        "game_sha256": "hash of everything that the run's games share: rules, prompts, models, retries",
        "spec_sha256": "hash of the resolved spec",
    },
    "agents": {
        "role": "prover or verifier",
        "model_group": "entry of `models`; agents with the same entry share a model",
        "model": "the model that was called",
        "base_model": "the model before any fine-tuning",
    },
    "metrics": {
        "agent": "the agent; NULL: the metric is about the whole game",
        "stderr": "standard error, clustered by group of datapoints",
        "ci_low": "lower end of the 95 % interval",
        "ci_high": "upper end of the 95 % interval",
        "n": "number of observations, such as rollouts",
        "clusters": "number of independent groups of datapoints; if both labels are needed, of the rarer label",
        "reason": "why there is no interval, or no value",
    },
    "rollouts": {
        "repeat": "number of the game among the games about the datapoint, from 0",
        "y": "the label. 0: the solution is wrong, 1: it is right",
        "stance": "the verdict that all provers argue for. 0: reject, 1: accept; NULL: they have different stances",
        "swapped": "whether two seats had exchanged their players; NULL: the run exchanges none",
        "stances_exchanged": "whether the provers had exchanged opposite stances; NULL: the run exchanges none",
        "decision": f"the verdict of the verifier, or of the panel. {_VERDICT}",
        "correct": "whether the decision equals the label; false without a decision; NULL: lost in transport",
        "outcome": "decided, no_decision, invalid_response, refused, context_exceeded or transport_failed",
        "rewards": "the reward of each agent: rewards->>'verifier'",
        "error": "why the rollout failed; NULL: it did not",
        "confidence_stated": "P(accept), from 0 to 1, that the verifier stated; NULL: not requested, or unknown",
        "confidence_logprob": "P(accept), from 0 to 1, from log-probabilities; NULL: not requested, or unknown",
        "confidence_note": "why a requested confidence is unknown, or only a bound",
        "votes": "the decision of each vote; NULL: there is one answer",
        "verdicts": "with rejudge --verdict each: round, decision, votes and confidences of every verdict",
        "panel": "the verdict of each judge of a panel: agent, round, decision, votes and confidences; NULL: no panel",
        "answer": "the letter of the chosen answer; NULL: no verdict, or no listed answers, as in the next columns",
        "right_answers": "the letters of the right answers in this game; NULL: their owner hides them",
        "answer_order": "for each letter from A, the number of its answer in the dataset, from 1",
        "argued_answers": "the letter that each prover argued for, by agent",
        "answer_scores": "the probability or score that the verdict gives each letter; NULL: it has only a letter",
        "p_right": "the sum of the probabilities of the right answers; NULL: the verdict has no probabilities",
        "answer_brier": "the sum over answers of the squared error of the probability",
        "judged_text": "the answer or sub-claim, stated by a prover, that the game judges; NULL: the dataset's own",
        "statements": "by round: the stated answer, sub-claims or probabilities, and their labels; NULL: none",
    },
    "datapoints": {
        "group": 'the group; without group_by, the datapoint id (quote the name: "group")',
        "label": "0: the solution is wrong, 1: it is right",
        "content_sha256": "hash of the columns that the verifier's templates use",
        "columns": "the other columns of the dataset, used by templates or not: columns->>'topic'",
    },
    "ranks": {
        "rank": "the first rank in the run's 95 % confidence set, within its list",
        "rank_last": "the last rank in the run's 95 % confidence set",
    },
    "rank_tests": {
        "leader": "the run of the pair whose id comes first in the alphabet",
        "p": "p-value of the sign-flip test of the two runs; 1 if the test favors the lower-ranked run",
    },
    "flips": {
        "run_a": "the first run; each pair is listed in both orders",
        "right_in": "the run with mostly right verdicts; in the other run most are wrong",
        "accuracy_a": "the share of right verdicts on this datapoint in run_a",
        "accuracy_b": "the share of right verdicts on this datapoint in run_b",
        "rollout_a": "a rollout with the majority verdict: nip-run show RUN_A ROLLOUT_A RUN_B ROLLOUT_B",
        "rollout_b": "a rollout with the majority verdict",
    },
    "ratings": {
        "player": "the player's name in `tournament.players`",
        "side": "right, wrong (the rating for arguing for such answers), or overall, the mean of both",
        "value": "Elo points above the average player of the tournament",
        "n": "number of the player's games with a winner",
        "clusters": "number of independent groups of datapoints of all games",
        "reason": "why there is no interval, or no value",
    },
    "leaderboard": {
        "failures": "deprecated, mixes lost and undecided games; use transport_failed (lost) and the next four columns",
        "accuracy": "share of right verdicts among the rollouts that were not lost in transport",
        "n": "number of rollouts that were not lost in transport",
        "clusters": "number of independent groups of datapoints",
        "rank": "the first rank of the run's 95 % confidence set; NULL: see reason",
        "rank_last": "the last rank of the run's 95 % confidence set",
        "reason": "why the run is unranked",
        "stopped": "how the run, or the run that it judges again, stopped early; its CI is a confidence sequence",
        "shared_with": "the run with the most answers in common",
        "shared": "maximum number of verdicts from the same answers as verdicts of shared_with",
        "list": "number of the run's list, from 1; a benchmark has a list for each task",
    },
}  # fmt: skip
"""Comments on columns by table; columns with a clear name have none."""


RECORD_COMMENTS: Mapping[str, Mapping[str, str]] = {
    "messages": {
        "round": "from 0",
        "content": "the delivered text: '' if the agent's answer had no part for this channel",
        "words": "number of words, if the protocol enforces a limit (`word_limit`); else NULL",
        "removed_words": "number of words over the limit, which were removed",
        "verified_quotes": "number of quotes that the source has, if the protocol checks quotes; else NULL",
        "unverified_quotes": "number of quotes that others see as unverified",
        "over_limit_quotes": "number of those that the source has, but that exceed a limit of quoted words",
        "quoted_words": "number of words in verified quotes",
    },
    "completions": {
        "round": "from 0",
        "attempt": "from 0; later attempts replace unusable answers",
        "finish_reason": "the reason that the server reports; NULL: no answer came",
        "raw_message": "the answer before it was parsed",
        "cached_tokens": "prompt tokens that the provider read from its cache",
        "latency_ms": "milliseconds from sending the call to its complete answer",
        "error": "why the attempt failed, or the answer could not be used",
        "reasoning": "the model's reasoning before its answer, if the server returns it",
        "verdict_logprobs": "the tokens of the decision with their log probabilities",
        "vote": "number of the vote or candidate (`best_of`); NULL: the first one",
        "selected": "whether the answer was selected from several candidates (false for all if no judgment was "
        "usable); NULL: there were no others",
        "score": "the selector's score of this candidate; NULL: it gives none",
        **_TOKEN_COMMENTS,
        "service_tier": "the processing tier that the provider reports or, if it reports none, the requested one; "
        "NULL: neither",
        "usage_estimated": "true: a token count was missing or implausible, so nip-run estimated it from the text",
    },
    "comparisons": {
        "run_a": "the first run; each pair is listed in both orders, and tested, so filter by run",
        "accuracy_a": "accuracy of run_a on the datapoints that both runs have, with equal weights",
        "difference": "accuracy_b minus accuracy_a",
        "stderr": "standard error, clustered by group of datapoints",
        "ci_low": "lower end of the 95 % interval of the difference",
        "ci_high": "upper end of the 95 % interval of the difference",
        "p": "p-value of the sign-flip test; NULL: no test (one group, one system, or forced or copied verdicts)",
        "detectable": "the minimum detectable difference at 80 % power, if the groups' differences spread as here",
        "groups": "independent groups of datapoints",
        "differing": "number of groups whose accuracy differs",
        "reason": "why a leaderboard does not rank one of the runs, such as copied verdicts; NULL: it ranks both",
    },
    "analyses": {
        "instrument": "hash of everything that answers depend on: analyzer, model, sampling parameters, parser",
        "model": "the model that answered; `code`: a function answered",
        "analyzer_sha256": "hash of the analyzer",
        "question_sha256": "hash of the question, its answers, and its conditions for units",
        "analysis_run_id": "the run that asked the model; NULL: no model was asked",
        "unit_id": "the unit's id: the rollout, then the agent, channel and round as far as its kind has them",
        "unit": "game, agent, channel, message or pair",
        "round": "the round of the message; NULL: the unit is another part of the game",
        "status": "answered, no_answer, not_applicable, or failed (the calls failed)",
        "answer": "the answer; NULL: see status",
        "value": "the number that the answer stands for, 1 for yes and 0 for no; NULL: labels, or no answer",
        "reason": "the reason for the answer, or why there is none",
        "spans": "parts of messages: agent, channel, round, start, end; for quotations also is_exact and the source",
        "votes": "the answer of each vote; NULL: the model was asked once",
        "answers": "all possible answers",
        "answer_values": "the number of each possible answer; NULL: the answers are labels",
    },
    "analyzed_rollouts": {
        "run_id": "this column and all columns of `rollouts`, then:",
        "instrument": "see `analyses`",
        "units": "number of the rollout's units that are applicable",
        "answered": "number of these with an answer",
        "value": "the mean number of the answers; for yes and no, the share of yes; NULL: labels, or no answers",
        "answers": "the answers in the order of unit_id; NULL: a unit without an answer",
    },
    "labels": {
        "analyzer_sha256": "hash of the analyzer",
        "question_sha256": "hash of the question; join `analyses` by it, run_id and unit_id",
        "unit_id": "see `analyses`",
        "reader": "the person who answered, by name; the last answer of each reader for a unit",
        "answer": "the person's answer",
        "time": "time in UTC",
        "seconds": "the time that the answer took; NULL: imported",
        "stratum": "the answer of a model by which the unit was drawn; NULL: drawn from all units",
        "stratified_by": "the instrument that gave this answer, and the start of the hash of its answers",
        "drawn": "position in the random order of units, from 0; NULL: imported",
        "probability": "probability of drawing the unit; NULL: unknown",
    },
    "validations": {
        "run_id": "the run with the labels",
        "question_sha256": "hash of the question",
        "instrument": "see `analyses`; a row has the last validation of an instrument with a run",
        "labeled_units": "number of units with a label",
        "readers": "number of people who labeled them",
        "raw": "the share of equal answers of the instrument and people",
        "kappa": "Cohen's kappa of the instrument and people; NULL: undefined",
        "kappa_low": "lower end of its 95 % interval",
        "kappa_high": "upper end of its 95 % interval",
        "alpha": "Krippendorff's alpha of the instrument and people; NULL: unknown",
        "time": "time in UTC",
    },
    "notes": {
        "written_at": "time in UTC",
        "writer": "the author; NULL: unknown",
        "rollout_id": "the game that the note is about; NULL: the run",
    },
}
"""Comments on tables that exist only in queries: Parquet files of runs, notes, and some views."""


def definitions_sql() -> str:
    """Return the SQL that creates missing parts of the board: tables, columns, views, comments."""
    added_columns = "".join(
        f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS "{name}" {kind};\n'
        for table, columns in NEW_COLUMNS.items()
        for name, kind in columns.items()
    )
    return _TABLES + added_columns + "".join(VIEWS.values()) + comments_sql(COMMENTS)


def update_definitions(connection: duckdb.DuckDBPyConnection) -> None:
    """Create missing parts of the board in the connection's current database, and replace its views.

    This takes longer than the run of a few games, so a comment on a view says that the board has all parts already. An
    earlier version of nip-run that opens the board replaces the view, which removes the comment.
    """
    definitions = definitions_sql()
    mark = f"definitions of nip-run, sha256:{hashlib.sha256(definitions.encode()).hexdigest()}"
    comments = connection.execute(
        "SELECT comment FROM duckdb_views() WHERE database_name = current_database() AND view_name = 'leaderboard'"
    )
    if comments.fetchall() != [(mark,)]:
        # In one transaction, since separate statements would each be written to disk.
        connection.execute(f"BEGIN; {definitions} COMMENT ON VIEW leaderboard IS '{mark}'; COMMIT;")


def used_views_sql(query: str) -> str:
    """Return the SQL that creates the views that a query names. All other views are created without rows.

    DuckDB checks the definition of a view, which takes long. For a misspelled name, an empty view is enough: DuckDB
    suggests the names of existing views.
    """
    sql = ""
    for name, definition in reversed(VIEWS.items()):  # a view reads only earlier views
        is_used = name in query
        query += definition * is_used
        sql = (definition if is_used else f"CREATE VIEW {name} AS SELECT 0 LIMIT 0;") + sql
    return sql


def comments_sql(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return the SQL that adds comments to columns. `columns` has the comments by table and column."""
    return "".join(
        f"COMMENT ON COLUMN {table}.\"{name}\" IS '{text.replace(chr(39), 2 * chr(39))}';\n"
        for table, texts in columns.items()
        for name, text in texts.items()
    )
