-- The accuracy of each run minus the accuracy of the verifier alone on the same datapoints.
--
-- The baseline of a run is all finished runs of the protocol $baseline with the same task and the same model of the
-- verifier. Runs with the same game, such as several seeds, are one baseline; each other game has its own row. Runs
-- that judge the debates of other runs are not baselines. The query leaves out replays, copies and runs with fixed
-- verdicts. All datapoints have the same weight, as in `nip-run compare`, which tests the difference.
--
-- $benchmark BENCHMARK = NULL: only this benchmark; default: all
-- $baseline PROTOCOL = solo_verifier: the protocol of the baseline
--
-- Columns: rejudge_of (the run whose debates this run judges; NULL: it played its own), baseline_runs, datapoints and
-- groups (in both), accuracy and baseline (means over datapoints), uplift (their difference), stderr (standard error of
-- the difference, clustered by group).
WITH verifiers AS (
    SELECT run_id, string_agg(model, ', ' ORDER BY agent) AS verifier FROM agents WHERE role = 'verifier' GROUP BY run_id
), games AS (
    SELECT
        r.run_id, u.benchmark, u.task, u.protocol, u.game_sha256, u.rejudge_of, v.verifier, r.datapoint_id,
        coalesce(d."group", r.datapoint_id) AS cluster, r.correct::INTEGER AS hit
    FROM rollouts r
    JOIN runs u USING (run_id)
    JOIN verifiers v USING (run_id)
    LEFT JOIN datapoints d USING (run_id, datapoint_id)
    WHERE u.kind = 'benchmark' AND u.status = 'done' AND u.parent_run_id IS NULL AND u.task IS NOT NULL
        AND u.replay_of IS NULL AND u.fixed_verdicts IS NULL AND u.run_id NOT IN (SELECT run_id FROM copies)
        AND r.correct IS NOT NULL
), baseline_games AS (
    SELECT *, game_sha256 AS baseline_game FROM games WHERE protocol = $baseline::VARCHAR AND rejudge_of IS NULL
), baselines AS (
    SELECT benchmark, task, verifier, baseline_game, datapoint_id, avg(hit) AS share FROM baseline_games GROUP BY ALL
), named AS (
    SELECT benchmark, task, verifier, baseline_game, string_agg(DISTINCT run_id, ', ' ORDER BY run_id) AS baseline_runs
    FROM baseline_games GROUP BY ALL
), shares AS (
    SELECT run_id, benchmark, task, protocol, rejudge_of, verifier, cluster, datapoint_id, avg(hit) AS share
    FROM games WHERE protocol <> $baseline::VARCHAR GROUP BY ALL
), grouped AS (
    SELECT
        g.run_id, g.benchmark, g.task, g.protocol, g.rejudge_of, g.verifier, b.baseline_game, g.cluster, count(*) AS size,
        sum(g.share) AS rights, sum(b.share) AS baseline_rights
    FROM shares g JOIN baselines b USING (benchmark, task, verifier, datapoint_id)
    GROUP BY ALL
), means AS (
    SELECT
        run_id, baseline_game, sum(size) AS datapoints, count(*) AS groups, sum(rights) / sum(size) AS accuracy,
        sum(baseline_rights) / sum(size) AS baseline
    FROM grouped GROUP BY ALL
)
SELECT
    benchmark, run_id, protocol, verifier, rejudge_of, baseline_runs, datapoints::BIGINT AS datapoints, groups, accuracy,
    baseline, accuracy - baseline AS uplift,
    CASE WHEN count(*) > 1 THEN
        sqrt(count(*) / (count(*) - 1) * sum((rights - baseline_rights - size * (accuracy - baseline)) ** 2)) / sum(size)
    END AS stderr
FROM grouped
JOIN means USING (run_id, baseline_game)
JOIN named USING (benchmark, task, verifier, baseline_game)
WHERE $benchmark::VARCHAR IS NULL OR benchmark = $benchmark::VARCHAR
GROUP BY ALL
ORDER BY benchmark, uplift DESC, run_id, baseline_runs
