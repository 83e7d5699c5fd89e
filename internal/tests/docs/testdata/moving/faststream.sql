-- The tables of faststream-outbox 0.19.0, with rows that the system wrote itself on PostgreSQL 15. Rows of a large
-- transaction follow, and all times are moved to now.
CREATE TABLE outbox (
    id bigint NOT NULL,
    queue character varying(255) NOT NULL,
    payload bytea NOT NULL,
    headers jsonb,
    attempts_count bigint DEFAULT '0'::bigint NOT NULL,
    deliveries_count bigint DEFAULT '0'::bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    next_attempt_at timestamp with time zone DEFAULT now() NOT NULL,
    first_attempt_at timestamp with time zone,
    last_attempt_at timestamp with time zone,
    acquired_at timestamp with time zone,
    acquired_token uuid,
    timer_id character varying(255),
    CONSTRAINT outbox_lease_ck CHECK (((acquired_token IS NULL) = (acquired_at IS NULL)))
);
CREATE TABLE outbox_dlq (
    id bigint NOT NULL,
    original_id bigint NOT NULL,
    queue character varying(255) NOT NULL,
    payload bytea NOT NULL,
    headers jsonb,
    deliveries_count bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    failed_at timestamp with time zone DEFAULT now() NOT NULL,
    failure_reason character varying(64) NOT NULL,
    last_exception character varying,
    timer_id character varying(255)
);
CREATE SEQUENCE outbox_dlq_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE outbox_dlq_id_seq OWNED BY outbox_dlq.id;
CREATE SEQUENCE outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE outbox_id_seq OWNED BY outbox.id;
ALTER TABLE ONLY outbox ALTER COLUMN id SET DEFAULT nextval('outbox_id_seq'::regclass);
ALTER TABLE ONLY outbox_dlq ALTER COLUMN id SET DEFAULT nextval('outbox_dlq_id_seq'::regclass);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (4, 'busy', '\x7b2271223a2262757379227d', '{"tenant": "t1", "content-type": "application/json", "correlation_id": "corr-busy"}', 0, 1, '2026-11-26 12:54:24.537158+00', '2026-11-26 12:54:24.537158+00', NULL, NULL, '2026-11-26 12:54:24.611706+00', '0209cd85-ca22-44ca-9893-171779e6eb5a', NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (1, 'retry', '\x7b2271223a227265747279227d', '{"tenant": "t1", "content-type": "application/json", "correlation_id": "corr-retry"}', 1, 1, '2026-11-26 12:54:24.537158+00', '2026-11-26 13:54:24.626584+00', '2026-11-26 12:54:24.623069+00', '2026-11-26 12:54:24.623069+00', NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (5, 'orders', '\x31', '{"content-type": "application/json", "correlation_id": "8658362b-97a2-4b85-9cd2-09c8c734bdbf"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (6, 'orders', '\x7b226964223a322c226e616d65223a226ac3bc7267656e227d', '{"content-type": "application/json", "correlation_id": "85c5d106-d74b-4c65-925b-7905c9acf48d"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (7, 'orders', '\x7b226964223a332c226e616d65223a2278227d', '{"content-type": "application/json", "correlation_id": "7b6796ca-8bac-4eef-8d73-14e614083e38"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (8, 'orders', '\x706c61696e2074657874', '{"content-type": "text/plain", "correlation_id": "2aba5587-0e92-44e6-b07e-06a7892bae62"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (9, 'orders', '\x89504e4700fffe', '{"correlation_id": "a5553a58-e807-444e-8deb-376b23e6b96c"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (10, 'orders', '\x5c7837623764', '{"correlation_id": "37247e12-b161-412e-b6f1-3c37ba5501ca"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (11, 'orders', '\x7b226964223a347d', '{"x-y": "ü", "tenant": "t1", "content-type": "application/json", "correlation_id": "c-4"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (12, 'orders', '\x7b226964223a357d', '{"content-type": "application/json", "correlation_id": "9517a3cd-0b61-4bb3-b9b3-572701ed80e0"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 13:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (13, 'orders', '\x7b226964223a367d', '{"content-type": "application/json", "correlation_id": "076a5eb0-d934-417b-8979-da7123499ed9"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-27 12:54:27.558475+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (14, 'orders', '\x7b226964223a377d', '{"content-type": "application/json", "correlation_id": "1b5cf723-6be2-4f58-a512-cce311b72157"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 14:54:27.551387+00', NULL, NULL, NULL, NULL, 'order-confirm-7');
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (16, 'mails', '\x7b226964223a387d', '{"content-type": "application/json", "correlation_id": "61a4738f-1675-44a1-9aa8-1012a2047227"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, 'order-confirm-7');
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (17, 'orders', '\x7b226e223a307d', '{"batch": "1", "content-type": "application/json", "correlation_id": "1f8f94cd-dceb-4a72-9614-d5fdfde9aa15"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (18, 'orders', '\x7b226e223a317d', '{"batch": "1", "content-type": "application/json", "correlation_id": "6444abd9-f0d3-477b-a4c4-865ad22f2fca"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox (id, queue, payload, headers, attempts_count, deliveries_count, created_at, next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, acquired_token, timer_id) VALUES (19, 'orders', '\x7b226e223a327d', '{"batch": "1", "content-type": "application/json", "correlation_id": "580344a4-b69a-4f10-8b7a-65595b51e385"}', 0, 0, '2026-11-26 12:54:27.551387+00', '2026-11-26 12:54:27.551387+00', NULL, NULL, NULL, NULL, NULL);
INSERT INTO outbox_dlq (id, original_id, queue, payload, headers, deliveries_count, created_at, failed_at, failure_reason, last_exception, timer_id) VALUES (1, 3, 'reject', '\x7b2271223a2272656a656374227d', '{"tenant": "t1", "content-type": "application/json", "correlation_id": "corr-reject"}', 1, '2026-11-26 12:54:24.537158+00', '2026-11-26 12:54:24.636031+00', 'rejected', 'RejectMessage()', NULL);
INSERT INTO outbox_dlq (id, original_id, queue, payload, headers, deliveries_count, created_at, failed_at, failure_reason, last_exception, timer_id) VALUES (2, 2, 'dead', '\x7b2271223a2264656164227d', '{"tenant": "t1", "content-type": "application/json", "correlation_id": "corr-dead"}', 1, '2026-11-26 12:54:24.537158+00', '2026-11-26 12:54:24.639586+00', 'retry_terminal', 'RuntimeError(''dead at once, secret=42'')', NULL);
SELECT pg_catalog.setval('outbox_dlq_id_seq', 2, true);
SELECT pg_catalog.setval('outbox_id_seq', 19, true);
ALTER TABLE ONLY outbox_dlq
    ADD CONSTRAINT outbox_dlq_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
CREATE INDEX outbox_dlq_queue_failed_idx ON outbox_dlq USING btree (queue, failed_at);
CREATE INDEX outbox_leased_idx ON outbox USING btree (queue, next_attempt_at, id) WHERE (acquired_token IS NOT NULL);
CREATE INDEX outbox_pending_idx ON outbox USING btree (queue, next_attempt_at, id) WHERE (acquired_token IS NULL);
CREATE UNIQUE INDEX outbox_timer_id_uq ON outbox USING btree (queue, timer_id) WHERE (timer_id IS NOT NULL);

INSERT INTO outbox (id, queue, payload, headers, created_at, next_attempt_at)
SELECT i, 'orders', convert_to(format('{"n":%s}', i), 'UTF8'), jsonb_build_object('content-type', 'application/json', 'n', i),
    '2026-11-26 12:54:28+00', '2026-11-26 12:54:28+00'
FROM (SELECT generate_series(95, 105) UNION ALL SELECT generate_series(990, 1015)) x(i);
-- of a worker that is still there
INSERT INTO outbox (id, queue, payload, deliveries_count, created_at, next_attempt_at, acquired_at, acquired_token)
VALUES (2000, 'orders', '\x7b7d', 1, '2026-11-26 12:54:28+00', '2026-11-26 12:54:28+00', '2026-11-26 12:56:00+00', gen_random_uuid());
UPDATE outbox SET created_at = created_at + d, next_attempt_at = next_attempt_at + d, first_attempt_at = first_attempt_at + d,
    last_attempt_at = last_attempt_at + d, acquired_at = acquired_at + d
FROM (SELECT date_trunc('milliseconds', now()) - timestamptz '2026-11-26 12:56:00+00' AS d) x;
UPDATE outbox_dlq SET created_at = created_at + d, failed_at = failed_at + d
FROM (SELECT date_trunc('milliseconds', now()) - timestamptz '2026-11-26 12:56:00+00' AS d) x;
