-- The table of an outbox for SQLAlchemy and RabbitMQ (kbairak/outbox, cb145b8), with rows that the system wrote itself
-- on PostgreSQL 15; its trigger that notifies is left out. Rows of a large transaction follow, and all times are
-- moved to now.
CREATE TABLE outbox_table (
    id integer NOT NULL,
    routing_key text NOT NULL,
    body bytea NOT NULL,
    tracking_ids json NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expiration interval,
    send_after timestamp with time zone NOT NULL,
    sent_at timestamp with time zone
);
CREATE SEQUENCE outbox_table_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE outbox_table_id_seq OWNED BY outbox_table.id;
ALTER TABLE ONLY outbox_table ALTER COLUMN id SET DEFAULT nextval('outbox_table_id_seq'::regclass);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (1, 'user.created', '\x7b226964223a20312c20226e6f7465223a202273656e74227d', '["616e9530-26ea-43f2-b4a8-7e2851548294"]', '2026-11-26 12:54:21.533646+00', NULL, '2026-11-26 12:54:21.533646+00', '2026-11-26 12:54:21.57192+00');
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (2, 'user.created', '\x00ff73656e74', '["f673a051-72b1-4793-ae9e-4353882d9085"]', '2026-11-26 12:54:21.536894+00', NULL, '2026-11-26 12:54:21.536894+00', '2026-11-26 12:54:21.57192+00');
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (3, 'user.created', '\x7b226964223a203132337d', '["b940ec53-fa7a-45b7-8b76-f34bd6d9260f"]', '2026-11-26 12:54:23.547016+00', NULL, '2026-11-26 12:54:23.547016+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (4, 'user.created', '\x7b226964223a3132342c22757365726e616d65223a226ac3bc7267656e227d', '["c920aed5-67cb-4566-bfcd-b2d35f678244"]', '2026-11-26 12:54:23.550893+00', NULL, '2026-11-26 12:54:23.550893+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (5, 'user.created', '\x7b226e616d65223a20226a5c75303066637267656e205c7532363033227d', '["6793cd30-6a6e-4d90-8fd1-bc209fab6cf1"]', '2026-11-26 12:54:23.552002+00', NULL, '2026-11-26 12:54:23.552002+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (6, 'file.stored', '\x89504e470d0a00fffe5c783431', '["0bb1dcc4-64c2-47b3-acda-4b816d40e5cc"]', '2026-11-26 12:54:23.552945+00', NULL, '2026-11-26 12:54:23.552945+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (7, 'file.stored', '\x', '["73ce384e-5b83-4362-b897-a0ed7132de44"]', '2026-11-26 12:54:23.554793+00', NULL, '2026-11-26 12:54:23.554793+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (8, 'file.stored', '\x5c7837623764', '["700c359a-3ce3-411a-9c6c-259164f9a1ac"]', '2026-11-26 12:54:23.555715+00', NULL, '2026-11-26 12:54:23.555715+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (9, 'num', '\x312e31', '["bf3f0aaf-ee10-45e5-9fc7-08bfd6dfbc63"]', '2026-11-26 12:54:23.556568+00', NULL, '2026-11-26 12:54:23.556568+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (10, 'null', '\x6e756c6c', '["0d4162d0-f363-473d-90a5-c0398595d671"]', '2026-11-26 12:54:23.557491+00', NULL, '2026-11-26 12:54:23.557491+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (11, 'mail.send', '\x7b226964223a20357d', '["e4ea363a-ee3f-4086-81ee-c07901ebb11c"]', '2026-11-26 12:54:23.558493+00', '01:00:00', '2026-11-26 12:54:23.558493+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (12, 'mail.send', '\x7b226964223a20367d', '["17c3c837-1a19-44af-b147-9c55a2e2e179"]', '2026-11-26 12:54:23.55947+00', '00:00:00.001', '2026-11-26 12:54:23.55947+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (13, 'mail.send', '\x7b226964223a20377d', '["42dddc92-e178-41e9-8112-256ad259d875"]', '2026-11-26 12:54:23.560433+00', NULL, '2026-11-26 13:54:23.560433+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (14, 'mail.send', '\x7b226964223a20387d', '["6c10367e-f89d-4905-b12d-13cc41177023"]', '2026-11-26 12:54:23.561495+00', '00:01:00', '2026-11-26 13:54:23.561495+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (15, 'mail.send', '\x7b226964223a20397d', '["fd178f0e-54c2-4d6c-bbbc-acd8002e3e34"]', '2026-11-26 12:54:23.562507+00', NULL, '2026-11-26 12:54:24.562507+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (16, 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', '\x7b226c6f6e67223a2022726f7574696e67206b6579206f6620333030206279746573227d', '["31a0a069-b55f-44ad-937c-4410daa81f61"]', '2026-11-26 12:54:23.563355+00', NULL, '2026-11-26 12:54:23.563355+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (17, 'user.created', '\x7b226964223a2031302c20226c696e65616765223a20327d', '["6bb93351-3b09-4b52-ac74-a3a6213d2d89", "ccd4e3b9-04b5-42d4-9269-a1dfe16b3f5e"]', '2026-11-26 12:54:23.564248+00', NULL, '2026-11-26 12:54:23.564248+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (18, 'user.created', '\x7b226964223a2031312c20226c696e65616765223a20337d', '["6bb93351-3b09-4b52-ac74-a3a6213d2d89", "7810c455-ddf4-48e8-b328-470224799eec", "8f8a1ee8-233d-4ec2-a302-30d34aff10a6"]', '2026-11-26 12:54:23.565039+00', NULL, '2026-11-26 12:54:23.565039+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (19, 'bulk', '\x7b226e223a20307d', '["84e7dbfa-f4ff-4bc8-b7dd-3b2bc04ff2f5"]', '2026-11-26 12:54:23.566036+00', NULL, '2026-11-26 12:54:23.566036+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (20, 'bulk', '\x7b226e223a20317d', '["f588dd3a-4df0-495b-a903-2a6c9f772083"]', '2026-11-26 12:54:23.566036+00', NULL, '2026-11-26 12:54:23.566036+00', NULL);
INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, expiration, send_after, sent_at) VALUES (21, 'bulk', '\x7b226e223a20327d', '["20ba92c7-236c-452b-b3d4-c5ee624ec774"]', '2026-11-26 12:54:23.566036+00', NULL, '2026-11-26 12:54:23.566036+00', NULL);
SELECT pg_catalog.setval('outbox_table_id_seq', 21, true);
ALTER TABLE ONLY outbox_table
    ADD CONSTRAINT outbox_table_pkey PRIMARY KEY (id);
CREATE INDEX outbox_cleanup_idx ON outbox_table USING btree (sent_at) WHERE (sent_at IS NOT NULL);
CREATE INDEX outbox_pending_idx ON outbox_table USING btree (send_after, created_at) WHERE (sent_at IS NULL);

INSERT INTO outbox_table (id, routing_key, body, tracking_ids, created_at, send_after)
SELECT i, 'many.things', convert_to(format('{"n": %s}', i), 'UTF8'), json_build_array('root', 'parent', gen_random_uuid()),
    '2026-11-26 12:54:25+00', '2026-11-26 12:54:25+00'
FROM (SELECT generate_series(95, 105) UNION ALL SELECT generate_series(990, 1015)) x(i);
UPDATE outbox_table SET created_at = created_at + d, send_after = send_after + d, sent_at = sent_at + d
FROM (SELECT date_trunc('milliseconds', now()) - max(created_at) AS d FROM outbox_table) x;
