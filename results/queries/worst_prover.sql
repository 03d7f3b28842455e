-- The worst prover: of the runs of one verifier on one task, the lowest accuracy and the most wrong accepts.
--
-- Each run is a prover: another model, seed or iteration. The query leaves out replays, copies, runs that judge the
-- debates of other runs, and runs with fixed verdicts. The lowest of several accuracies is too low on average; `nip-run
-- compare RUN RUN... --worst` computes an interval that takes this into account.
--
-- $benchmark BENCHMARK = NULL: only this benchmark; default: all
--
-- Columns: provers (number of compared runs), accuracy, soundness_error (share of wrong solutions that are accepted),
-- completeness (share of right solutions that are accepted), rank (1: the lowest accuracy).
SELECT
    u.benchmark, u.protocol, a.verifier, rank() OVER (same ORDER BY m.value) AS rank, u.run_id, a.prover, count(*) OVER same AS provers,
    m.value AS accuracy, g.soundness_error, g.completeness
FROM runs u
JOIN metrics m ON m.run_id = u.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
JOIN (
    SELECT
        run_id, string_agg(model, ', ' ORDER BY agent) FILTER (role = 'verifier') AS verifier,
        string_agg(model, ', ' ORDER BY agent) FILTER (role = 'prover') AS prover
    FROM agents GROUP BY run_id
) a ON a.run_id = u.run_id AND a.prover IS NOT NULL
JOIN (
    SELECT
        run_id, avg((decision = 1)::INTEGER) FILTER (y = 0) AS soundness_error,
        avg((decision = 1)::INTEGER) FILTER (y = 1) AS completeness
    FROM rollouts WHERE outcome <> 'transport_failed' GROUP BY run_id
) g ON g.run_id = u.run_id
WHERE u.kind = 'benchmark' AND u.status = 'done' AND u.task IS NOT NULL AND u.replay_of IS NULL AND u.rejudge_of IS NULL
    AND u.fixed_verdicts IS NULL AND u.run_id NOT IN (SELECT run_id FROM copies) AND m.value IS NOT NULL
    AND ($benchmark::VARCHAR IS NULL OR u.benchmark = $benchmark::VARCHAR)
WINDOW same AS (PARTITION BY u.benchmark, u.task, u.protocol, a.verifier)
ORDER BY u.benchmark, u.protocol, a.verifier, u.task, rank, u.run_id
