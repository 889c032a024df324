CREATE TABLE customers (customer_id BIGINT PRIMARY KEY, region STRING);
CREATE TABLE orders (order_id BIGINT PRIMARY KEY, customer_id BIGINT, amount DECIMAL(12, 2));
