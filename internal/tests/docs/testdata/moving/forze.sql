-- The tables of forze 0.16.2, with rows that the system wrote itself on PostgreSQL 15. Rows of a large transaction
-- follow, and all times are moved to now.
CREATE SCHEMA app;
CREATE TABLE app.inbox (
    inbox_route text NOT NULL,
    message_id text NOT NULL,
    processed_at timestamp with time zone NOT NULL
);
CREATE TABLE app.outbox (
    id uuid NOT NULL,
    outbox_route text NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    tenant_id uuid,
    execution_id uuid,
    correlation_id uuid,
    causation_id uuid,
    occurred_at timestamp with time zone NOT NULL,
    payload jsonb NOT NULL,
    status text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    published_at timestamp with time zone,
    processing_at timestamp with time zone,
    last_error text,
    attempts integer DEFAULT 0 NOT NULL,
    available_at timestamp with time zone,
    ordering_key text,
    hlc bigint,
    traceparent text
);
INSERT INTO app.inbox (inbox_route, message_id, processed_at) VALUES ('orders-inbox', '4446c342-2967-4133-a8c9-3af7208e37a2', '2026-11-26 12:54:29.526892+00');
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f56e-7cc9-9239-3f1253b2994f', 'order-events', 'cd89d510-d142-4dde-a6af-45d6ce7c9143', 'order.placed', '8c74a525-ede3-40d5-b8a3-e88175e68386', '5d32dc8e-2c02-4250-b538-d2047adca70d', '25847843-e1f2-44df-b553-58f2ab9207ef', '44752b59-592c-42a5-86a9-094eabbf761c', '2026-11-26 12:54:29.486368+00', '{"note": null, "amount": 1.1, "order_id": "sent"}', 'published', '2026-11-26 12:54:29.486684+00', '2026-11-26 12:54:29.501804+00', '2026-11-26 12:54:29.492495+00', NULL, 0, NULL, NULL, 117682842467434496, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f580-7436-8a68-4d0bfa0d8ca9', 'order-events', '01a217eb-f57f-7f22-ba1a-aab7cee3fff2', 'order.placed', 'a8cdfa94-8b4e-4719-afc5-0b1f8ae052f9', 'b134ab7b-f2fb-49e0-8087-a50c56698634', '29f7d5b8-6c8b-4a88-bca0-9a19e269a958', '7a00a6d6-c169-4fda-9110-f0d35c9030ce', '2026-11-26 12:54:29.504019+00', '{"note": null, "amount": 1.1, "order_id": "poison"}', 'failed', '2026-11-26 12:54:29.50418+00', NULL, '2026-11-26 12:54:29.50636+00', '1 validation error for Strict
must
  Field required [type=missing, input_value={''note'': None, ''amount'': ...1, ''order_id'': ''poison''}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.14/v/missing', 0, NULL, NULL, 117682842468614144, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f585-7442-89ca-d7a7499e8b9e', 'order-events', '01a217eb-f585-70b2-b30d-22aeba20fd78', 'order.placed', '4bb4ca03-1245-46b1-9147-50408fea697b', '06f76555-9034-47cf-ac5c-9bcd68e7cf70', 'b7da8d5e-a90f-4ba8-a3c3-dfab849d57a8', '0c4ec531-f392-40d6-8e76-c1ecf2e9f4ee', '2026-11-26 12:54:29.509064+00', '{"note": null, "amount": 1.1, "order_id": "claimed"}', 'processing', '2026-11-26 12:54:29.509187+00', NULL, '2026-11-26 12:54:29.510743+00', NULL, 0, NULL, NULL, 117682842468941824, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f589-71d6-9645-ca136c59b5fc', 'order-events', '01a217eb-f588-7dc2-9484-0dfd8977eae4', 'order.placed', '11420595-4186-4329-ae42-59607a61e868', '2589060f-e921-4418-ab82-fe866b8bf44c', 'd32023a5-84e3-4654-a6aa-e7b8834747e0', '7e419fd6-6e02-43bd-8957-7b6373cacce0', '2026-11-26 12:54:29.512917+00', '{"note": null, "amount": 1.1, "order_id": "retried"}', 'pending', '2026-11-26 12:54:29.513031+00', NULL, NULL, 'broker down', 3, '2026-11-26 13:54:29.515678+00', NULL, 117682842469138432, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f58d-7541-8cb5-6190a28a5eed', 'billing-events', '01a217eb-f58d-708b-b631-07ec745317be', 'invoice.made', '8a8a1ec1-7b30-4687-88b7-6dbeaec0fe88', '92b838d8-7188-4a8f-8f5f-bcb5afe93b88', 'db5a1d7f-09ce-43f0-8867-02fe877f7857', '03a1a4a1-397f-4499-8d6f-59abce2ec33f', '2026-11-26 12:54:29.517053+00', '{"note": null, "amount": 1.1, "order_id": "exhausted"}', 'failed', '2026-11-26 12:54:29.517253+00', NULL, '2026-11-26 12:54:29.518865+00', 'gave up after 5', 0, NULL, NULL, 117682842469466112, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f591-76c9-9c8f-704a74b709aa', 'order-events', '4446c342-2967-4133-a8c9-3af7208e37a2', 'order.placed', '6faabcd8-0d37-4d42-aef4-c9db69bacd51', '8edaddb4-3d21-4978-adc8-25ff66caa847', '86578e41-dd71-466b-b1d8-d3b2edee91ff', '7c55aea8-bb8d-4e60-a9dc-1752845c894f', '2026-11-26 12:54:29.521152+00', '{"note": null, "amount": 1.1, "order_id": "plain"}', 'pending', '2026-11-26 12:54:29.521351+00', NULL, NULL, NULL, 0, NULL, NULL, 117682842469728256, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f591-7710-9f56-4a87ed004fbb', 'order-events', '01a217eb-f591-734c-91c8-df7b8882154a', 'order.shipped', '6faabcd8-0d37-4d42-aef4-c9db69bacd51', '8edaddb4-3d21-4978-adc8-25ff66caa847', '86578e41-dd71-466b-b1d8-d3b2edee91ff', '7c55aea8-bb8d-4e60-a9dc-1752845c894f', '2026-11-26 12:54:29.521231+00', '{"note": "jürgen ☃", "amount": 1.1, "order_id": "keyed"}', 'pending', '2026-11-26 12:54:29.521351+00', NULL, NULL, NULL, 0, NULL, 'o-1', 117682842469728257, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f591-7738-9193-2958d60118ba', 'order-events', '01a217eb-f591-7406-8939-450a6ca3cae5', 'order.shipped', '6faabcd8-0d37-4d42-aef4-c9db69bacd51', '8edaddb4-3d21-4978-adc8-25ff66caa847', '86578e41-dd71-466b-b1d8-d3b2edee91ff', '7c55aea8-bb8d-4e60-a9dc-1752845c894f', '2026-11-26 12:54:29.521272+00', '{"note": null, "amount": 100000000000000000000, "order_id": "keyed2"}', 'pending', '2026-11-26 12:54:29.521351+00', NULL, NULL, NULL, 0, NULL, 'o-1', 117682842469728258, NULL);
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, tenant_id, execution_id, correlation_id, causation_id, occurred_at, payload, status, created_at, published_at, processing_at, last_error, attempts, available_at, ordering_key, hlc, traceparent) VALUES ('01a217eb-f595-7575-9971-a6555310b5cc', 'billing-events', '4446c342-2967-4133-a8c9-3af7208e37a2', 'order.placed', '3c29a581-af90-4a61-b806-95f66d44ea78', '00be0c82-8df8-4eb4-976d-e7bfd618df77', '62bf3613-283b-4262-b908-a0d1a7d8fdc6', 'f514e811-4da6-4a91-94b6-95b669b52cce', '2026-11-26 12:54:29.525175+00', '{"note": null, "amount": 1.1, "order_id": "other route"}', 'pending', '2026-11-26 12:54:29.52527+00', NULL, NULL, NULL, 0, NULL, NULL, 117682842469990400, NULL);
ALTER TABLE ONLY app.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (inbox_route, message_id);
ALTER TABLE ONLY app.outbox
    ADD CONSTRAINT outbox_outbox_route_event_id_key UNIQUE (outbox_route, event_id);
ALTER TABLE ONLY app.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
CREATE INDEX outbox_claim_hlc_idx ON app.outbox USING btree (outbox_route, status, available_at, hlc, created_at, id);
CREATE INDEX outbox_claim_idx ON app.outbox USING btree (outbox_route, status, available_at, created_at);

INSERT INTO app.outbox (id, outbox_route, event_id, event_type, correlation_id, occurred_at, payload, status, created_at, ordering_key,
    hlc, traceparent)
SELECT gen_random_uuid(), 'order-events', gen_random_uuid(), 'order.changed', '25847843-e1f2-44df-b553-58f2ab9207ef',
    '2026-11-26 12:54:30+00', jsonb_build_object('n', i), 'pending', '2026-11-26 12:54:30+00', 'o-2', 117682842469990400 + i,
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
FROM (SELECT generate_series(1, 12) UNION ALL SELECT generate_series(95, 105) UNION ALL SELECT generate_series(990, 1015)) x(i);
-- encryption: at_rest
INSERT INTO app.outbox (id, outbox_route, event_id, event_type, occurred_at, payload, status, created_at)
VALUES (gen_random_uuid(), 'billing-events', gen_random_uuid(), 'invoice.made', '2026-11-26 12:54:31+00', '{"__fz_enc__": "AbCd"}', 'pending',
    '2026-11-26 12:54:31+00');
UPDATE app.outbox SET created_at = created_at + d, occurred_at = occurred_at + d, published_at = published_at + d,
    processing_at = processing_at + d, available_at = available_at + d
FROM (SELECT date_trunc('milliseconds', now()) - max(created_at) AS d FROM app.outbox) x;
