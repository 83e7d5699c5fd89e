-- The columns of the indexes come first: an update compares them all, in the old row and in the new one, and finds a column
-- behind a variable-length one by walking from the first. Their texts are compared byte by byte: that is fast, and no upgrade of
-- the system's locales makes an index wrong, and with it what is unique.
CREATE TABLE {outbox} (
    seq            bigint           GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    holds          boolean          NOT NULL DEFAULT false,
    route          text COLLATE "C" NOT NULL DEFAULT 'default',
    id             text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
    topic          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL DEFAULT '',
    dedupe_key     text COLLATE "C" NOT NULL DEFAULT '',
    reason         text COLLATE "C" NOT NULL DEFAULT '',
    due_at         timestamptz,
    settled_at     timestamptz,
    expires_at     timestamptz,
    lease_until    timestamptz,
    lease_token    bigint           NOT NULL DEFAULT 0,
    crashes        integer          NOT NULL DEFAULT 0,
    attempts       integer          NOT NULL DEFAULT 0,
    state          smallint         NOT NULL DEFAULT 1,
    maybe_sent     boolean          NOT NULL DEFAULT false,
    hlc            bigint           NOT NULL DEFAULT 0,
    occurred_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    ready_since    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    body           bytea            NOT NULL,
    type           text             NOT NULL DEFAULT '',
    source         text             NOT NULL DEFAULT '',
    content_type   text             NOT NULL DEFAULT 'application/json',
    correlation_id text             NOT NULL DEFAULT '',
    trace_parent   text             NOT NULL DEFAULT '',
    attrs          json,
    lease_owner    text             NOT NULL DEFAULT '',
    last_error     text             NOT NULL DEFAULT '',
    last_error_at  timestamptz
) WITH (
    fillfactor = 45, -- a claim makes a row a little longer, and its new version should find room on the same page
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
);

COMMENT ON TABLE {outbox} IS 'Waybill outbox: one row for each staged message and route, until it is published';
COMMENT ON COLUMN {outbox}.seq IS 'staging order';
COMMENT ON COLUMN {outbox}.hlc IS 'hybrid logical clock stamp; 0 = none';
COMMENT ON COLUMN {outbox}.occurred_at IS 'when the event happened, by the producer''s clock';
COMMENT ON COLUMN {outbox}.ready_since IS 'when it was first due: the time of staging, or the scheduled time';
COMMENT ON COLUMN {outbox}.due_at IS 'not before this time: a schedule, or a retry if holds; null = at once';
COMMENT ON COLUMN {outbox}.expires_at IS 'when the message loses its value, by the producer''s clock; null = never';
COMMENT ON COLUMN {outbox}.settled_at IS 'when it reached a terminal state; null = live';
COMMENT ON COLUMN {outbox}.lease_until IS 'end of the lease; null = not leased. In the past: its relay died';
COMMENT ON COLUMN {outbox}.lease_token IS 'fencing token of the latest claim';
COMMENT ON COLUMN {outbox}.attempts IS 'how often the broker said no';
COMMENT ON COLUMN {outbox}.crashes IS 'how often a lease ended without an outcome';
COMMENT ON COLUMN {outbox}.state IS '1 pending, 2 processing, 3 published, 4 failed, 5 abandoned';
COMMENT ON COLUMN {outbox}.holds IS 'it was put off by a retry or its schedule came: from then on it holds back later messages of its key';
COMMENT ON COLUMN {outbox}.maybe_sent IS 'it may have been delivered: the result of a try is unknown';
COMMENT ON COLUMN {outbox}.route IS 'the lane it is sent on';
COMMENT ON COLUMN {outbox}.id IS 'message id, unique on its route';
COMMENT ON COLUMN {outbox}.topic IS 'routing key';
COMMENT ON COLUMN {outbox}.key IS 'ordering key; empty = unordered';
COMMENT ON COLUMN {outbox}.type IS 'CloudEvents type; empty = the topic';
COMMENT ON COLUMN {outbox}.source IS 'CloudEvents source; empty = the source option of the relay''s outbox';
COMMENT ON COLUMN {outbox}.content_type IS 'media type of body';
COMMENT ON COLUMN {outbox}.correlation_id IS 'common to all messages of one conversation';
COMMENT ON COLUMN {outbox}.trace_parent IS 'W3C trace context of the staging span';
COMMENT ON COLUMN {outbox}.attrs IS 'the rarer attributes: subject, tenant, causation, run, lineage, tracestate, priority, headers';
COMMENT ON COLUMN {outbox}.body IS 'encoded payload';
COMMENT ON COLUMN {outbox}.lease_owner IS 'name of the relay of the latest claim, for people';
COMMENT ON COLUMN {outbox}.reason IS 'why it was abandoned; empty if it was not';
COMMENT ON COLUMN {outbox}.last_error IS 'the latest error, capped, without payload';
COMMENT ON COLUMN {outbox}.last_error_at IS 'when that was';
COMMENT ON COLUMN {outbox}.dedupe_key IS 'there is one live message with it on its route and topic; empty = any number';
COMMENT ON INDEX {outbox_pkey} IS 'settling';

CREATE UNIQUE INDEX {outbox_id} ON {outbox} (route, id);
COMMENT ON INDEX {schema}.{outbox_id} IS 'staging an id twice on a route is a no-op';

CREATE UNIQUE INDEX {outbox_dedupe} ON {outbox} (route, topic, dedupe_key) WHERE dedupe_key <> '' AND settled_at IS NULL;
COMMENT ON INDEX {schema}.{outbox_dedupe} IS 'staging a dedupe key of a live message is a no-op; finding it to cancel or replace it';

-- A claim writes the lease, crashes and state: none of these may stand in an index or a predicate, or no update is HOT.
CREATE INDEX {outbox_ready} ON {outbox} (route, (seq + 0)) WHERE settled_at IS NULL AND due_at IS NULL;
COMMENT ON INDEX {schema}.{outbox_ready} IS 'claims: what is due, in staging order; seq + 0, so that nobody takes the primary key instead';
CREATE INDEX {outbox_key} ON {outbox} (route, key, seq) WHERE coalesce(settled_at, due_at) IS NULL AND key <> '';
COMMENT ON INDEX {schema}.{outbox_key} IS 'claims: is there an earlier message of this key';
CREATE INDEX {outbox_holds} ON {outbox} (route, holds, key, (coalesce(due_at, '-infinity')), seq) WHERE settled_at IS NULL AND (holds OR due_at IS NOT NULL) AND key <> '';
COMMENT ON INDEX {schema}.{outbox_holds} IS 'claims: what holds back a key: retries, and schedules that came due';
CREATE INDEX {outbox_timer} ON {outbox} (route, due_at) WHERE settled_at IS NULL AND due_at IS NOT NULL;
COMMENT ON INDEX {schema}.{outbox_timer} IS 'claims: schedules and retries, by time';
CREATE INDEX {outbox_reason} ON {outbox} (route, key, seq) WHERE reason <> '';
COMMENT ON INDEX {schema}.{outbox_reason} IS 'abandoned messages by key: routes that block after one, counts';
CREATE INDEX {outbox_abandoned} ON {outbox} ((seq + 0)) WHERE reason <> '';
COMMENT ON INDEX {schema}.{outbox_abandoned} IS 'abandoned messages in staging order: lists, redrives';

-- These two hold no row of a message that is staged without expiry and deleted when published.
CREATE INDEX {outbox_settled} ON {outbox} ((CASE WHEN reason = '' THEN 0 WHEN reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END), settled_at) WHERE settled_at IS NOT NULL;
COMMENT ON INDEX {schema}.{outbox_settled} IS 'cleaning: published (0), abandoned (1) and withdrawn (2) messages, by time';
CREATE INDEX {outbox_expires} ON {outbox} (expires_at) WHERE expires_at IS NOT NULL AND settled_at IS NULL;
COMMENT ON INDEX {schema}.{outbox_expires} IS 'cleaning: messages that expire while they wait';

CREATE SEQUENCE {wake} AS bigint MINVALUE 0 START 0 CACHE 1;
COMMENT ON SEQUENCE {wake} IS 'until when a relay sleeps, in milliseconds since 1970: staging notifies only until then';
