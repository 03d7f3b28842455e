-- The standard deviation between seeds and within them: are differences between runs larger than those between seeds?
--
-- Runs with the same name, game (rules, prompts, models) and task are seeds of one row. The query leaves out replays
-- and copies.
--
-- $name NAME = NULL: only runs with this name; default: all
--
-- Columns: iteration (for a test of a training run), seeds, accuracy (mean over seeds), lowest, highest, between
-- (standard deviation between seeds; NULL: one seed), within (typical standard error of one run), fixed_verdicts (why
-- the verdicts are not the verifier's answers; NULL: they are).
WITH seats AS (
    SELECT
        run_id, string_agg(agent || '=' || model_group || ':' || coalesce(base_model, model), ', ' ORDER BY agent) AS base
    FROM agents GROUP BY run_id
)
SELECT
    u.benchmark, u.name, u.protocol, u.iteration, count(*) AS seeds, avg(m.value) AS accuracy, min(m.value) AS lowest,
    max(m.value) AS highest, stddev_samp(m.value) AS between, sqrt(avg(m.stderr ** 2)) AS within,
    min(u.fixed_verdicts) AS fixed_verdicts
FROM runs u
JOIN metrics m ON m.run_id = u.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
JOIN seats s ON s.run_id = u.run_id
WHERE u.kind = 'benchmark' AND u.status = 'done' AND u.replay_of IS NULL AND u.analysis_of IS NULL
    AND u.run_id NOT IN (SELECT run_id FROM copies)
    AND ($name::VARCHAR IS NULL OR u.name = $name::VARCHAR)
-- The name of a trained model differs between seeds, so tests of training runs are grouped by the base models.
GROUP BY
    u.benchmark, u.name, u.protocol, u.task, u.iteration, CASE WHEN u.iteration IS NULL THEN u.game_sha256 ELSE s.base END
ORDER BY u.benchmark, u.name, u.protocol, u.task, u.iteration
