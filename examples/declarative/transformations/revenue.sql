CREATE MATERIALIZED VIEW revenue AS
SELECT customer_id, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer_id;
