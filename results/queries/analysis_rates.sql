-- The rates of each analysis by agent, uncorrected, and how many of an agent's quotations are exact.
--
-- $analyzer TEXT = NULL: only this analyzer; default: all
-- $run RUN = NULL: only this run; default: all
--
-- Columns: units (to which the question applies), answered, rate (mean number of the answers; for yes and no, the share
-- of yes), not_applicable, quotations (that exact_quotation found), exact (how many of these are exact; one unit can have
-- several quotations, and its answer is yes only if all are exact).
WITH chosen AS (
    SELECT * FROM analyses
    WHERE ($run::VARCHAR IS NULL OR run_id = $run::VARCHAR)
        AND ($analyzer::VARCHAR IS NULL OR analyzer = $analyzer::VARCHAR)
)
SELECT
    run_id, analyzer, instrument, agent, count(*) FILTER (status <> 'not_applicable') AS units,
    count(answer) AS answered, avg(value) AS rate, count(*) FILTER (status = 'not_applicable') AS not_applicable,
    sum(len(list_filter(spans::JSON[], lambda span: span->>'is_exact' IS NOT NULL)))::BIGINT AS quotations,
    sum(len(list_filter(spans::JSON[], lambda span: span->>'is_exact' = 'true')))::BIGINT AS exact
FROM chosen GROUP BY ALL
ORDER BY run_id, analyzer, instrument, agent
