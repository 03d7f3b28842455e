-- Why calls were repeated, by run and agent.
--
-- The query counts calls that failed, and calls that were followed by another attempt at the same vote of the same
-- step.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: reason (for a failed call its error, with # for numbers), calls (with this reason), share (of all calls of
-- the agent), games (number of games with this reason), example (a rollout id).
WITH counted AS (
    SELECT
        *, count(*) OVER (PARTITION BY run_id, agent) AS all_calls,
        lead(attempt) OVER (PARTITION BY run_id, rollout_id, round, agent, vote ORDER BY attempt) IS NOT NULL AS again,
        CASE
            WHEN error IS NOT NULL THEN left(regexp_replace(error, '[0-9]+', '#', 'g'), 120)
            WHEN finish_reason IN ('length', 'content_filter') THEN 'the server ended the answer: ' || finish_reason
            WHEN coalesce(trim(raw_message), '') = '' THEN 'no text'
            ELSE 'not in the requested format'
        END AS reason
    FROM completions
    WHERE $run::VARCHAR IS NULL OR run_id = $run::VARCHAR
)
SELECT
    run_id, agent, reason, count(*) AS calls, count(*) / any_value(all_calls) AS share,
    count(DISTINCT rollout_id) AS games, min(rollout_id) AS example
FROM counted
WHERE again OR error IS NOT NULL
GROUP BY run_id, agent, reason
ORDER BY run_id, calls DESC, agent, reason
