-- Mean accuracy by protocol and models over all seeds: the paper's first figure, with the verifier alone as a bar.
--
-- Runs with the same name, game (rules, prompts, models) and task are seeds of one row. The query leaves out replays,
-- copies, runs that judge the debates of other runs, and runs with fixed verdicts.
--
-- $benchmark BENCHMARK = NULL: only this benchmark; default: all
--
-- Columns: max_rounds (of the protocol), seeds (number of pooled runs), games, accuracy (over all games; a game without
-- a verdict counts as wrong), stderr (clustered by group over all seeds), lowest and highest (accuracy of one run),
-- accept (share of games that end in accept).
WITH seats AS (
    SELECT run_id, string_agg(agent || '=' || model, ', ' ORDER BY agent) AS models FROM agents GROUP BY run_id
), games AS (
    SELECT
        u.benchmark, u.task, u.name, u.game_sha256, u.protocol, s.models, r.run_id,
        coalesce(d."group", r.datapoint_id) AS cluster, r.correct::INTEGER AS hit,
        (r.decision = 1)::INTEGER AS accepts
    FROM rollouts r
    JOIN runs u USING (run_id)
    JOIN seats s USING (run_id)
    LEFT JOIN datapoints d USING (run_id, datapoint_id)
    WHERE u.kind = 'benchmark' AND u.status = 'done' AND u.parent_run_id IS NULL AND u.replay_of IS NULL
        AND u.analysis_of IS NULL
        AND u.rejudge_of IS NULL AND u.fixed_verdicts IS NULL AND u.run_id NOT IN (SELECT run_id FROM copies)
        AND r.outcome <> 'transport_failed'
        AND ($benchmark::VARCHAR IS NULL OR u.benchmark = $benchmark::VARCHAR)
), means AS (
    SELECT
        benchmark, task, name, game_sha256, protocol, models, count(*) AS games, avg(hit) AS accuracy,
        avg(accepts) AS accept
    FROM games GROUP BY ALL
), clusters AS (
    SELECT benchmark, task, name, game_sha256, cluster, sum(hit - m.accuracy) AS residual
    FROM games JOIN means m USING (benchmark, task, name, game_sha256)
    GROUP BY ALL
), errors AS (
    SELECT
        benchmark, task, name, game_sha256,
        CASE WHEN count(*) > 1 THEN sqrt(count(*) / (count(*) - 1) * sum(residual ** 2)) END AS error
    FROM clusters GROUP BY ALL
), spread AS (
    SELECT benchmark, task, name, game_sha256, count(*) AS seeds, min(accuracy) AS lowest, max(accuracy) AS highest
    FROM (SELECT benchmark, task, name, game_sha256, run_id, avg(hit) AS accuracy FROM games GROUP BY ALL)
    GROUP BY ALL
)
SELECT
    benchmark, name, protocol, max_rounds, models, seeds, games, accuracy, error / games AS stderr, lowest, highest, accept
FROM means
JOIN errors USING (benchmark, task, name, game_sha256)
JOIN spread USING (benchmark, task, name, game_sha256)
JOIN (
    SELECT name, game_sha256, any_value(spec ->> '$.protocol.max_message_rounds')::INTEGER AS max_rounds
    FROM runs GROUP BY ALL
) USING (name, game_sha256)
ORDER BY benchmark, task, accuracy DESC, name, game_sha256
