-- The games with the most tokens.
--
-- $run RUN = NULL: only this run; default: all
-- $limit NUMBER = 20: number of games to list
--
-- Columns: rounds, calls, tokens (prompts and answers of all calls), longest_answer (in characters), outcome, correct.
SELECT
    r.run_id, r.rollout_id, r.datapoint_id, r.rounds, count(*) AS calls,
    sum(coalesce(c.prompt_tokens, 0) + coalesce(c.completion_tokens, 0))::BIGINT AS tokens,
    max(length(c.raw_message)) AS longest_answer, r.outcome, r.correct
FROM rollouts r
JOIN completions c USING (run_id, rollout_id)
WHERE $run::VARCHAR IS NULL OR r.run_id = $run::VARCHAR
GROUP BY ALL
ORDER BY tokens DESC, r.run_id, r.rollout_id
LIMIT $limit::BIGINT
