-- A shop: run it with `dbspark run examples/shop.sql`.
CREATE TABLE customers (customer_id BIGINT PRIMARY KEY, region STRING, referred_by BIGINT);
CREATE TABLE products (product_id BIGINT PRIMARY KEY, name STRING, price DECIMAL(8, 2));
CREATE TABLE orders (order_id BIGINT PRIMARY KEY, customer_id BIGINT, product_id BIGINT, quantity INT);

-- Views may read views.
CREATE MATERIALIZED VIEW spending AS
SELECT customer_id, region, sum(quantity * price) AS spent
FROM orders JOIN customers USING (customer_id) JOIN products USING (product_id)
GROUP BY customer_id, region;

CREATE MATERIALIZED VIEW best_customers AS
SELECT region, customer_id, spent FROM (
    SELECT *, row_number() OVER (PARTITION BY region ORDER BY spent DESC, customer_id) AS place FROM spending)
WHERE place = 1;

-- Whom everybody has brought in, and whom those have brought in, and so on.
CREATE MATERIALIZED VIEW referrals AS
WITH RECURSIVE brought(customer_id, newcomer) AS (
    SELECT referred_by, customer_id FROM customers WHERE referred_by IS NOT NULL
    UNION ALL
    SELECT b.customer_id, c.customer_id FROM brought b JOIN customers c ON c.referred_by = b.newcomer)
SELECT * FROM brought;

INSERT INTO customers VALUES (1, 'north', NULL), (2, 'south', 1), (3, 'south', 2), (4, 'north', 1);
INSERT INTO products VALUES (1, 'lamp', 19.90), (2, 'chair', 49.00);
INSERT INTO orders VALUES (10, 1, 1, 2), (11, 2, 2, 1), (12, 3, 2, 4), (13, 4, 1, 3);
SELECT * FROM best_customers ORDER BY region;

-- The best customer of the south cancels, and every view follows.
DELETE FROM orders WHERE order_id = 12;
SELECT * FROM best_customers ORDER BY region;
SELECT customer_id, count(*) AS people FROM referrals GROUP BY customer_id ORDER BY customer_id;
