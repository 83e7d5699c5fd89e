-- The table that Debezium's outbox event router expects, with the columns that its extension of Quarkus adds, and
-- rows as that extension writes them. All times are moved to now.
CREATE TABLE outboxevent (
    id uuid NOT NULL,
    aggregatetype character varying(255) NOT NULL,
    aggregateid character varying(255) NOT NULL,
    type character varying(255) NOT NULL,
    "timestamp" timestamp without time zone NOT NULL,
    payload jsonb,
    tracingspancontext character varying(256)
);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('58571d25-890a-48b2-b6e8-68a6d6a97654', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006622', '{"n": 1, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('826da54a-00f1-47b1-9fa4-66cde6cbb162', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006754', '{"n": 2, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('c0d73e98-c1dd-4f48-95a9-6e11b9e14e81', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.00676', '{"n": 3, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('f4f2f13e-db30-461d-87c8-55d7a2eb5a32', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006763', '{"n": 4, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('98c00677-16c8-4883-a08e-4286e14f43c4', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006766', '{"n": 5, "text": "é \"q\""}', '#
#Fri Nov 27 08:00:00 UTC 2026
traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
');
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('f8ad9bcc-ed1b-4698-acd7-1bb56ad82610', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.00677', '{"n": 6, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('9098ecd1-8194-4011-bfd7-137ed6ba9062', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006773', '{"n": 7, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('711f6ef0-002f-4ea1-be51-a3998ecf54cf', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006775', '{"n": 8, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('cb45d25d-7340-4c1d-976e-4ef9ae0eb6b3', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006778', '{"n": 9, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('77cd245e-afcf-4abc-bb84-e60573eec907', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006781', '{"n": 10, "text": "é \"q\""}', '#
#Fri Nov 27 08:00:00 UTC 2026
traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
');
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('735cc373-172f-4424-baf7-8a69a4eb3bb7', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006784', '{"n": 11, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('693d1272-4716-48d1-9513-eb2f7c9cdc44', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006787', '{"n": 12, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('d8530ede-a00f-4857-9eba-d9f4f844e969', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006789', '{"n": 13, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('7d80403d-fe6c-40e0-a221-2e7a935f2957', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006792', '{"n": 14, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('8a42e607-94f7-4490-9284-b49d1067819e', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006795', '{"n": 15, "text": "é \"q\""}', '#
#Fri Nov 27 08:00:00 UTC 2026
traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
');
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('20cb192a-1075-4742-845b-ae4a1dc32290', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006798', '{"n": 16, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('39025b95-eb25-41ed-ba95-6935e835cebc', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006803', '{"n": 17, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('c14e0807-4623-4f44-9634-6ab7b4ff409e', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006805', '{"n": 18, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('7514a3b3-14c6-48e0-9e6e-ffff83165cec', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006808', '{"n": 19, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('100983a0-07c7-43cd-a352-c0965404f067', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006811', '{"n": 20, "text": "é \"q\""}', '#
#Fri Nov 27 08:00:00 UTC 2026
traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
');
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('84bf7a95-f645-49f7-bff6-9dbe48668013', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006814', '{"n": 21, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('836cc22e-14bd-461c-bb75-e6bbb12b65d6', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006816', '{"n": 22, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('59a4293c-9819-457f-9a2c-6b79d67a507a', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006819', '{"n": 23, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('1f407e18-3588-4802-b44b-cffd008ac2b2', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006822', '{"n": 24, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('117a9d36-7895-4c72-b3f8-f994efd2d431', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006824', '{"n": 25, "text": "é \"q\""}', '#
#Fri Nov 27 08:00:00 UTC 2026
traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
');
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('6a8baa85-fa7e-4a25-9f10-71d8d50a5cdc', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006827', '{"n": 26, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('447dc256-dcf5-48c6-a0f3-cab1c06d4809', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006829', '{"n": 27, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('53293cda-3714-4a34-b485-1988af1a07a1', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006832', '{"n": 28, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('093057db-f37c-42a0-bff4-e9786d749849', 'order', '1', 'OrderChanged', '2026-11-27 08:26:21.006835', '{"n": 29, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('8cde6832-2fce-4c51-934d-5c8e8d9595c4', 'order', '2', 'OrderChanged', '2026-11-27 08:26:21.006838', '{"n": 30, "text": "é \"q\""}', '#
#Fri Nov 27 08:00:00 UTC 2026
traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
');
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('28433523-5b69-4db9-b6d7-e6fbc769ef01', 'order', '3', 'OrderChanged', '2026-11-27 08:26:21.006841', '{"n": 31, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('5407abf1-3b31-4a58-bcb8-6807be820dbb', 'order', '0', 'OrderChanged', '2026-11-27 08:26:21.006843', '{"n": 32, "text": "é \"q\""}', NULL);
INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, "timestamp", payload, tracingspancontext) VALUES ('892bd713-9d1a-464d-8703-17c78c3a19df', 'customer', 'c-1', 'CustomerDeleted', '2026-11-27 08:26:21.006946', NULL, NULL);
ALTER TABLE ONLY outboxevent
    ADD CONSTRAINT outboxevent_pkey PRIMARY KEY (id);

UPDATE outboxevent SET "timestamp" = "timestamp" + d
FROM (SELECT date_trunc('milliseconds', now() AT TIME ZONE 'UTC') - timestamp '2026-11-27 08:28:00' AS d) x;
