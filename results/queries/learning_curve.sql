-- Learning curves: accuracy on the test before each iteration and after the last, with the mean and range over seeds.
--
-- Training runs with the same name, protocol and benchmark are seeds of one curve. The query leaves out copies.
--
-- $name NAME = NULL: only training runs with this name; default: all
--
-- Columns: iteration (number of iterations that the models were trained; 0: untrained), seeds, accuracy (mean over
-- seeds), lowest, highest, between (standard deviation between seeds), within (typical standard error of one seed),
-- fixed_verdicts (why the verdicts are not the verifier's answers; NULL: they are).
SELECT
    p.benchmark, p.name, p.protocol, t.iteration, count(*) AS seeds, avg(m.value) AS accuracy, min(m.value) AS lowest,
    max(m.value) AS highest, stddev_samp(m.value) AS between, sqrt(avg(m.stderr ** 2)) AS within,
    min(t.fixed_verdicts) AS fixed_verdicts
FROM runs t
JOIN runs p ON p.run_id = t.parent_run_id
JOIN metrics m ON m.run_id = t.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
WHERE t.kind = 'benchmark' AND t.status = 'done' AND p.kind = 'training'
    AND t.run_id NOT IN (SELECT run_id FROM copies)
    AND ($name::VARCHAR IS NULL OR p.name = $name::VARCHAR)
GROUP BY p.benchmark, p.name, p.protocol, t.task, t.iteration
ORDER BY p.benchmark, p.name, p.protocol, t.task, t.iteration
