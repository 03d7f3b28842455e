-- The judges of each panel: how often each is right, alone and if it disagrees with the panel, and how it decides.
--
-- Only runs of protocols with a panel have rows. The rows with judge NULL are those of the panel itself.
--
-- $run RUN = NULL: only this run; default: all
--
-- Columns: judge, model, games (with a label), accuracy (a missing verdict counts as wrong), accepts (share of accepting
-- verdicts), missing (games without a verdict), overruled (games in which the panel decided otherwise), right_overruled
-- (how many of these verdicts were right), confidence (mean stated P(accept)).
WITH judged AS (
    SELECT
        run_id, y, decision AS panel_decision, unnest(panel::JSON[]) AS verdict, verdict->>'agent' AS judge,
        (verdict->>'decision')::INT AS decision, (verdict->>'confidence_stated')::DOUBLE AS confidence
    FROM rollouts WHERE panel IS NOT NULL AND correct IS NOT NULL
    UNION ALL
    SELECT run_id, y, decision, NULL, NULL, decision, confidence_stated
    FROM rollouts WHERE panel IS NOT NULL AND correct IS NOT NULL
)
SELECT
    j.run_id, j.judge, a.model, count(*) AS games, avg((j.decision = j.y)::INT) AS accuracy,
    avg((j.decision = 1)::INT) AS accepts, count(*) FILTER (j.decision = 2) AS missing,
    count(*) FILTER (j.decision <> 2 AND j.panel_decision <> 2 AND j.decision <> j.panel_decision) AS overruled,
    count(*) FILTER (
        j.decision <> 2 AND j.panel_decision <> 2 AND j.decision <> j.panel_decision AND j.decision = j.y
    ) AS right_overruled,
    avg(j.confidence) AS confidence
FROM judged j LEFT JOIN agents a ON a.run_id = j.run_id AND a.agent = j.judge
WHERE $run::VARCHAR IS NULL OR j.run_id = $run::VARCHAR
GROUP BY j.run_id, j.judge, a.model
ORDER BY j.run_id, j.judge NULLS LAST
