-- Tokens and calls by agent.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: calls, prompt_tokens, cached_tokens (prompt tokens from the provider's cache), completion_tokens,
-- tokens_per_game (prompts and answers), seconds_per_call (mean time from sending to the complete answer).
SELECT
    c.run_id, c.agent, max(c.model) AS model, count(*) AS calls, sum(c.prompt_tokens)::BIGINT AS prompt_tokens,
    sum(c.cached_tokens)::BIGINT AS cached_tokens, sum(c.completion_tokens)::BIGINT AS completion_tokens,
    sum(coalesce(c.prompt_tokens, 0) + coalesce(c.completion_tokens, 0)) / any_value(g.games) AS tokens_per_game,
    avg(c.latency_ms) / 1000 AS seconds_per_call
FROM completions c
JOIN (SELECT run_id, count(*) AS games FROM rollouts GROUP BY run_id) g USING (run_id)
WHERE $run::VARCHAR IS NULL OR c.run_id = $run::VARCHAR
GROUP BY c.run_id, c.agent
ORDER BY c.run_id, c.agent
