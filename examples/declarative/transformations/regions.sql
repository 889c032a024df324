-- Files may define things in any order: revenue and orders are in other files.
CREATE MATERIALIZED VIEW regions AS
SELECT region, sum(total) AS total FROM revenue JOIN customers USING (customer_id) GROUP BY region;
