-- The cost of a right verdict by run, in dollars and in tokens.
--
-- The cost of a run includes all calls, also those with unusable answers, but not the cost of trainers. The query
-- leaves out copies and runs with fixed verdicts.
--
-- Columns: games, right (number of right verdicts), cost_usd (of the run; NULL: a price is unknown), usd_per_right,
-- tokens_per_right (prompts and answers).
SELECT
    u.benchmark, u.run_id, u.protocol, u.rollouts AS games, g.right, u.cost_usd,
    u.cost_usd / nullif(g.right, 0) AS usd_per_right,
    (u.prompt_tokens + u.completion_tokens) / nullif(g.right, 0) AS tokens_per_right
FROM runs u
JOIN (SELECT run_id, sum(correct::BIGINT)::BIGINT AS right FROM rollouts GROUP BY run_id) g USING (run_id)
WHERE u.kind = 'benchmark' AND u.status = 'done' AND u.analysis_of IS NULL
    AND u.fixed_verdicts IS NULL AND u.run_id NOT IN (SELECT run_id FROM copies)
ORDER BY u.benchmark, usd_per_right NULLS LAST, tokens_per_right NULLS LAST, u.run_id
