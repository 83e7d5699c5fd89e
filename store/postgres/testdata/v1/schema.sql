-- 0001_base_create
-- What the outbox and the inbox share. Places in braces are names; see Migrations in migrate.go.
CREATE SCHEMA IF NOT EXISTS "waybill";

CREATE TABLE IF NOT EXISTS "waybill"."waybill_meta" (
    name  text   NOT NULL PRIMARY KEY,
    value bigint NOT NULL,
    owner text   NOT NULL DEFAULT ''
);
COMMENT ON TABLE "waybill"."waybill_meta" IS 'Waybill: schema versions, clock marks and leases';
COMMENT ON COLUMN "waybill"."waybill_meta".name IS 'table name, a dot, and what it is: version (of the schema), compatible (oldest version that a program must know, if not any), hlc (highest stamp published), epoch (raised after a restore), cleaner (lease)';
COMMENT ON COLUMN "waybill"."waybill_meta".value IS 'the value; of a lease its end, in microseconds since 1970';
COMMENT ON COLUMN "waybill"."waybill_meta".owner IS 'who holds the lease; empty for other rows';
INSERT INTO "waybill"."waybill_meta" (name, value) VALUES ('version', 1) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- 0002_outbox_create
-- Texts that stand in an index are compared byte by byte: that is fast, and no upgrade of the system's locales makes an index
-- wrong, and with it what is unique. Columns of a fixed length come first: they are found without a walk.
CREATE SEQUENCE "waybill"."waybill_outbox_seq" AS bigint CACHE 1;
COMMENT ON SEQUENCE "waybill"."waybill_outbox_seq" IS 'Waybill: the staging order of records. CACHE must stay 1: readers rely on numbers that rise in time';

CREATE TABLE "waybill"."waybill_outbox" (
    -- The transaction has its id before it draws the number, whoever inserts: readers tell by ids what they cannot see yet.
    seq            bigint           NOT NULL DEFAULT ((pg_current_xact_id() IS NULL)::int + pg_catalog.nextval('"waybill"."waybill_outbox_seq"')),
    hold           bigint           NOT NULL DEFAULT 0,
    hlc            bigint           NOT NULL DEFAULT 0,
    occurred_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    ready_since    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    version        integer          NOT NULL DEFAULT 1,
    attempts       integer          NOT NULL DEFAULT 0,
    deliveries     integer          NOT NULL DEFAULT 0,
    crashes        integer          NOT NULL DEFAULT 0,
    state          smallint         NOT NULL DEFAULT 1,
    slot           smallint         NOT NULL,
    own_id         boolean          NOT NULL DEFAULT true,
    cancellable     boolean          NOT NULL DEFAULT false,
    maybe_sent     boolean          NOT NULL DEFAULT false,
    retry          boolean          NOT NULL DEFAULT false,
    blocks         boolean          NOT NULL DEFAULT false,
    due_at         timestamptz,
    settled_at     timestamptz,
    expires_at     timestamptz,
    held_since     timestamptz,
    last_error_at  timestamptz,
    route          text COLLATE "C" NOT NULL DEFAULT 'default',
    key            text COLLATE "C" NOT NULL DEFAULT '',
    id             text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
    topic          text COLLATE "C" NOT NULL,
    dedupe_key     text COLLATE "C" NOT NULL DEFAULT '',
    reason         text COLLATE "C" NOT NULL DEFAULT '',
    type           text             NOT NULL DEFAULT '',
    source         text             NOT NULL DEFAULT '/release' CONSTRAINT "waybill_outbox_source" CHECK (source <> ''),
    content_type   text             NOT NULL DEFAULT 'application/json',
    correlation_id text             NOT NULL DEFAULT '',
    trace_parent   text             NOT NULL DEFAULT '',
    last_error     text             NOT NULL DEFAULT '',
    attrs          json,
    body           bytea            NOT NULL,
    CONSTRAINT "waybill_outbox_pkey" PRIMARY KEY (route, seq),
    -- A program could not read what is infinite or of another age, and would stop at it.
    CONSTRAINT "waybill_outbox_times" CHECK (
        occurred_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND ready_since BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND expires_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND due_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'),
    -- Nobody would read a record of another slot.
    CONSTRAINT "waybill_outbox_slot" CHECK (slot BETWEEN 0 AND 63)
) WITH (
    fillfactor = 90, -- some are put off
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE "waybill"."waybill_outbox" IS 'Waybill: one row for each staged message and route, until it is published. Ready is what has neither due_at nor settled_at';
COMMENT ON COLUMN "waybill"."waybill_outbox".seq IS 'staging order; a timer gets a new number when it comes due';
COMMENT ON COLUMN "waybill"."waybill_outbox".hold IS 'session of the member that holds it; 0 = none. The hold of a session that is not in the table of members is no hold';
COMMENT ON COLUMN "waybill"."waybill_outbox".hlc IS 'hybrid logical clock stamp; 0 = none';
COMMENT ON COLUMN "waybill"."waybill_outbox".occurred_at IS 'when the event happened, by the producer''s clock';
COMMENT ON COLUMN "waybill"."waybill_outbox".ready_since IS 'when it was first due: the time of staging, or the scheduled time';
COMMENT ON COLUMN "waybill"."waybill_outbox".version IS 'grows with every change but a hold';
COMMENT ON COLUMN "waybill"."waybill_outbox".attempts IS 'how often the broker or the handler said no';
COMMENT ON COLUMN "waybill"."waybill_outbox".deliveries IS 'how often it was handed to a handler; only queues count';
COMMENT ON COLUMN "waybill"."waybill_outbox".crashes IS 'how often a member was removed while it held it';
COMMENT ON COLUMN "waybill"."waybill_outbox".state IS '1 pending, 3 published, 4 failed, 5 abandoned';
COMMENT ON COLUMN "waybill"."waybill_outbox".slot IS 'first 6 bits of the MD5 of route, a byte 31, and key; without a key of route, a byte 31, and id';
COMMENT ON COLUMN "waybill"."waybill_outbox".own_id IS 'the id may exist twice, since a program chose it: it must be unique on its route';
COMMENT ON COLUMN "waybill"."waybill_outbox".cancellable IS 'it may be cancelled or replaced although it is due';
COMMENT ON COLUMN "waybill"."waybill_outbox".maybe_sent IS 'it may have been delivered: the result of a try is unknown';
COMMENT ON COLUMN "waybill"."waybill_outbox".retry IS 'it waits until due_at for its next attempt, and holds its key; without it due_at is a schedule';
COMMENT ON COLUMN "waybill"."waybill_outbox".blocks IS 'it was abandoned for a reason that holds its key, on routes that block';
COMMENT ON COLUMN "waybill"."waybill_outbox".due_at IS 'not before this time: a schedule, or a retry; null = at once';
COMMENT ON COLUMN "waybill"."waybill_outbox".settled_at IS 'when it reached a terminal state; null = live';
COMMENT ON COLUMN "waybill"."waybill_outbox".expires_at IS 'when the message loses its value, by the producer''s clock; null = never';
COMMENT ON COLUMN "waybill"."waybill_outbox".held_since IS 'when the hold was written; null = not held';
COMMENT ON COLUMN "waybill"."waybill_outbox".last_error_at IS 'when the latest error was';
COMMENT ON COLUMN "waybill"."waybill_outbox".route IS 'its route: a stream of messages that is read and sent apart from the others';
COMMENT ON COLUMN "waybill"."waybill_outbox".key IS 'ordering key; empty = unordered';
COMMENT ON COLUMN "waybill"."waybill_outbox".id IS 'message id';
COMMENT ON COLUMN "waybill"."waybill_outbox".topic IS 'routing key';
COMMENT ON COLUMN "waybill"."waybill_outbox".dedupe_key IS 'there is one live message with it on its route and topic: tenant, a byte 31, and key; without a tenant the key; empty = any number';
COMMENT ON COLUMN "waybill"."waybill_outbox".reason IS 'why it was abandoned; empty if it was not';
COMMENT ON COLUMN "waybill"."waybill_outbox".type IS 'CloudEvents type; empty = the topic';
COMMENT ON COLUMN "waybill"."waybill_outbox".source IS 'CloudEvents source. Its default is that of the first store that migrated; the owner may change it';
COMMENT ON COLUMN "waybill"."waybill_outbox".content_type IS 'media type of body';
COMMENT ON COLUMN "waybill"."waybill_outbox".correlation_id IS 'common to all messages of one conversation';
COMMENT ON COLUMN "waybill"."waybill_outbox".trace_parent IS 'W3C trace context of the staging span';
COMMENT ON COLUMN "waybill"."waybill_outbox".last_error IS 'the latest error, capped, without payload';
COMMENT ON COLUMN "waybill"."waybill_outbox".attrs IS 'the rarer attributes: subject, tenant, causation, run, lineage, tracestate, priority, headers';
COMMENT ON COLUMN "waybill"."waybill_outbox".body IS 'encoded payload';
-- Programs compute the slots of the rows that they stage, and notify by themselves. For rows that are put in by hand,
-- and those that get another route, key or id, the database does: for all of them that would make staging slower.
CREATE FUNCTION "waybill"."waybill_outbox_slot"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN -- no line of it ends with ;, where tools would end the statement
    NEW.slot := pg_catalog.get_byte(pg_catalog.decode(pg_catalog.left(pg_catalog.md5(NEW.route || E'\x1f' || coalesce(nullif(NEW.key, ''), NEW.id)), 2), 'hex'), 0) >> 2
    ; IF TG_OP = 'INSERT' AND pg_catalog.has_sequence_privilege('"waybill"."waybill_outbox_wake"', 'SELECT') THEN
        PERFORM pg_catalog.pg_notify('waybill_25c50bbafea3b626', NEW.route) FROM "waybill"."waybill_outbox_wake" w
        WHERE w.last_value > (extract(epoch FROM clock_timestamp()) * '1000')::bigint AND (NEW.due_at < clock_timestamp() + interval '1 minute') IS NOT FALSE
    ; END IF; RETURN NEW; END
$$;
COMMENT ON FUNCTION "waybill"."waybill_outbox_slot"() IS 'Waybill: the slot of a record, and the notification of a relay that sleeps';
CREATE TRIGGER slot_of_new BEFORE INSERT ON "waybill"."waybill_outbox" FOR EACH ROW WHEN (NEW.slot IS NULL) EXECUTE FUNCTION "waybill"."waybill_outbox_slot"();
CREATE TRIGGER slot_of_moved BEFORE UPDATE OF route, key, id, slot ON "waybill"."waybill_outbox" FOR EACH ROW EXECUTE FUNCTION "waybill"."waybill_outbox_slot"();

-- No index begins with seq: the planner would take it for the reads of a route, and pass everybody's rows.
COMMENT ON INDEX "waybill"."waybill_outbox_pkey" IS 'reading a route in staging order; settling';

CREATE INDEX "waybill_outbox_key" ON "waybill"."waybill_outbox" (route, key, seq) WHERE key <> '' AND due_at IS NULL AND settled_at IS NULL;
COMMENT ON INDEX "waybill"."waybill_outbox_key" IS 'reading a key in staging order';

-- The others are empty, or nearly so, as long as all goes well.
CREATE UNIQUE INDEX "waybill_outbox_id" ON "waybill"."waybill_outbox" (route, id) WHERE own_id;
COMMENT ON INDEX "waybill"."waybill_outbox_id" IS 'staging an id twice on a route is a no-op';
CREATE INDEX "waybill_outbox_found" ON "waybill"."waybill_outbox" (route, id) WHERE NOT own_id AND (cancellable OR hold <> 0 OR coalesce(due_at, settled_at) IS NOT NULL);
COMMENT ON INDEX "waybill"."waybill_outbox_found" IS 'finding by id what Waybill made the id of, unless it is simply due';
CREATE UNIQUE INDEX "waybill_outbox_dedupe" ON "waybill"."waybill_outbox" (route, topic, dedupe_key) WHERE dedupe_key <> '' AND settled_at IS NULL;
COMMENT ON INDEX "waybill"."waybill_outbox_dedupe" IS 'staging a dedupe key of a live message is a no-op';
CREATE INDEX "waybill_outbox_due" ON "waybill"."waybill_outbox" (route, due_at, seq) WHERE due_at IS NOT NULL AND NOT retry AND settled_at IS NULL;
COMMENT ON INDEX "waybill"."waybill_outbox_due" IS 'schedules, by time';
CREATE INDEX "waybill_outbox_retry" ON "waybill"."waybill_outbox" (route, due_at, seq) WHERE retry;
COMMENT ON INDEX "waybill"."waybill_outbox_retry" IS 'retries, by time';
CREATE INDEX "waybill_outbox_hold" ON "waybill"."waybill_outbox" (hold) WHERE hold <> 0;
COMMENT ON INDEX "waybill"."waybill_outbox_hold" IS 'what a session holds';
-- Statements about a key do not say that seq > 0, so the planner cannot take this index for them. Without statistics of
-- retries and holds it takes this one for cheaper than the next one, and passes the dead entries of all keys for each
-- key.
CREATE INDEX "waybill_outbox_waiting" ON "waybill"."waybill_outbox" (route, seq) WHERE (retry OR hold <> 0) AND seq > 0;
COMMENT ON INDEX "waybill"."waybill_outbox_waiting" IS 'retries and holds of a route, for its new owner';
CREATE INDEX "waybill_outbox_waiting_key" ON "waybill"."waybill_outbox" (route, key, seq) WHERE (retry OR hold <> 0) AND key <> '';
COMMENT ON INDEX "waybill"."waybill_outbox_waiting_key" IS 'retries and holds of a key';
CREATE INDEX "waybill_outbox_blocking" ON "waybill"."waybill_outbox" (route, key, seq) WHERE blocks;
COMMENT ON INDEX "waybill"."waybill_outbox_blocking" IS 'abandoned records that hold their key';
CREATE INDEX "waybill_outbox_abandoned" ON "waybill"."waybill_outbox" (route, seq) WHERE reason <> '';
COMMENT ON INDEX "waybill"."waybill_outbox_abandoned" IS 'abandoned records in staging order: lists, redrives, counts';
CREATE INDEX "waybill_outbox_settled" ON "waybill"."waybill_outbox" ((CASE WHEN reason = '' THEN 0 WHEN reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END), settled_at) WHERE settled_at IS NOT NULL;
COMMENT ON INDEX "waybill"."waybill_outbox_settled" IS 'cleaning: published (0), abandoned (1) and cancelled (2) records, by time';
CREATE INDEX "waybill_outbox_expires" ON "waybill"."waybill_outbox" (route, (CASE WHEN due_at IS NULL THEN 1 ELSE 0 END), expires_at) WHERE expires_at IS NOT NULL AND settled_at IS NULL;
COMMENT ON INDEX "waybill"."waybill_outbox_expires" IS 'cleaning: records that expire while they wait for a time (0), or are due (1)';

CREATE TABLE "waybill"."waybill_outbox_members" (
    session       bigint      NOT NULL PRIMARY KEY,
    heartbeats    bigint      NOT NULL,
    lease         bigint      NOT NULL,
    presence      bigint      NOT NULL,
    joined_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    capacity      integer     NOT NULL,
    free_capacity integer     NOT NULL,
    suspected     boolean     NOT NULL DEFAULT false,
    name          text        NOT NULL,
    routes        text[] COLLATE "C" NOT NULL,
    partitions    smallint[]  NOT NULL,
    unavailable   boolean[]   NOT NULL,
    handed_out    integer[]   NOT NULL,
    oldest_handed_out bigint[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE "waybill"."waybill_outbox_members" IS 'Waybill: the relays and consumers that hand records out. A row is locked for key share by all that its member writes; a renewal changes no key';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".session IS 'random number of one run of one process, never used again';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".heartbeats IS 'number of its renewals: a late one has a smaller number and changes nothing';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".lease IS 'for how long heartbeats may stand still until other members remove it, in microseconds';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".presence IS 'token of something that ends with its connection; 0 = none';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".joined_at IS 'when it joined, for people';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".renewed_at IS 'when it was last renewed, for people';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".capacity IS 'how many records it can have handed out at once';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".free_capacity IS 'how many more records it could be handed';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".suspected IS 'another member saw that its presence is lost';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".name IS 'for people';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".routes IS 'the routes that it serves';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".partitions IS 'number of partitions that it would make, by route';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".unavailable IS 'it cannot hand out now, by route';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".handed_out IS 'how many records it had handed out at its renewal, by route';
COMMENT ON COLUMN "waybill"."waybill_outbox_members".oldest_handed_out IS 'for how long the oldest of them had been out, in microseconds, by route';

CREATE TABLE "waybill"."waybill_outbox_routes" (
    read_after      bigint   NOT NULL DEFAULT 0,
    uncertain_up_to bigint   NOT NULL DEFAULT 0,
    term            bigint   NOT NULL DEFAULT 0,
    partitions      smallint NOT NULL DEFAULT 0,
    route           text COLLATE "C" NOT NULL PRIMARY KEY
);
COMMENT ON TABLE "waybill"."waybill_outbox_routes" IS 'Waybill: the routes that are or were served; partitions are made under the lock of their row';
COMMENT ON COLUMN "waybill"."waybill_outbox_routes".read_after IS 'read_after of partitions that will be made';
COMMENT ON COLUMN "waybill"."waybill_outbox_routes".uncertain_up_to IS 'uncertain_up_to of partitions that will be made';
COMMENT ON COLUMN "waybill"."waybill_outbox_routes".term IS 'terms of partitions that will be made are greater';
COMMENT ON COLUMN "waybill"."waybill_outbox_routes".partitions IS 'number of partitions; 0 = there are none, since no member serves it';
COMMENT ON COLUMN "waybill"."waybill_outbox_routes".route IS 'the route';

CREATE TABLE "waybill"."waybill_outbox_partitions" (
    owner           bigint   NOT NULL DEFAULT 0,
    slots           bigint   NOT NULL,
    read_after      bigint   NOT NULL,
    uncertain_up_to bigint   NOT NULL,
    term            bigint   NOT NULL,
    from_slot       smallint NOT NULL,
    to_slot         smallint NOT NULL,
    route           text COLLATE "C" NOT NULL,
    PRIMARY KEY (route, from_slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE "waybill"."waybill_outbox_partitions" IS 'Waybill: ranges of slots of a route, and who owns them';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".owner IS 'session of the owner; 0 = free';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".slots IS 'its slots, as bits';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".read_after IS 'a new owner reads the records with a greater sequence';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".uncertain_up_to IS 'records up to it may have been handed out by a member that died';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".term IS 'grows with each change of the owner';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".from_slot IS 'its first slot';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".to_slot IS 'the slot after its last one';
COMMENT ON COLUMN "waybill"."waybill_outbox_partitions".route IS 'its route';

CREATE TABLE "waybill"."waybill_outbox_notices" (
    number bigint           GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME "waybill"."waybill_outbox_notices_seq") PRIMARY KEY,
    slots  bigint           NOT NULL,
    seq    bigint           NOT NULL DEFAULT 0,
    kind   smallint         NOT NULL,
    slot   smallint         NOT NULL DEFAULT 0,
    route  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    id     text COLLATE "C" NOT NULL DEFAULT '',
    reason text COLLATE "C" NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE "waybill"."waybill_outbox_notices" IS 'Waybill: tells owners that another program changed a record or key that they remember';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".number IS 'names it';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".slots IS 'slots whose owners have not acted on it yet, as bits';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".seq IS 'the record; of kind 3 the first one';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".kind IS '1 a key may be free, 2 a record is ready again, 3 records from a sequence on are ready again, 4 an operator ends a record';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".slot IS 'the record''s slot';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".route IS 'the route';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".key IS 'the key';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".id IS 'the record''s id';
COMMENT ON COLUMN "waybill"."waybill_outbox_notices".reason IS 'why the operator ends it, of kind 4';
CREATE FUNCTION "waybill"."waybill_outbox_told"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF pg_catalog.has_sequence_privilege('"waybill"."waybill_outbox_wake"', 'SELECT') THEN
        PERFORM pg_catalog.pg_notify('waybill_25c50bbafea3b626', NEW.route) FROM "waybill"."waybill_outbox_wake" w WHERE w.last_value > (extract(epoch FROM clock_timestamp()) * '1000')::bigint
    ; END IF; RETURN NULL; END
$$;
COMMENT ON FUNCTION "waybill"."waybill_outbox_told"() IS 'Waybill: notifies a relay that sleeps';
CREATE TRIGGER tells_sleepers AFTER INSERT ON "waybill"."waybill_outbox_notices" FOR EACH ROW EXECUTE FUNCTION "waybill"."waybill_outbox_told"();

CREATE TABLE "waybill"."waybill_outbox_audit" (
    number  bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz      NOT NULL DEFAULT clock_timestamp(),
    role    text             NOT NULL DEFAULT session_user,
    act     text COLLATE "C" NOT NULL,
    phase   text COLLATE "C" NOT NULL CHECK (phase IN ('begin', 'end')),
    who     text COLLATE "C" NOT NULL,
    via     text COLLATE "C" NOT NULL,
    origin  text COLLATE "C" NOT NULL,
    action  text COLLATE "C" NOT NULL,
    target  text COLLATE "C" NOT NULL,
    filter  text COLLATE "C" NOT NULL,
    ids     text[]           NOT NULL,
    before  text COLLATE "C" NOT NULL,
    after   text COLLATE "C" NOT NULL,
    result  text COLLATE "C" NOT NULL
);
COMMENT ON TABLE "waybill"."waybill_outbox_audit" IS 'Waybill: acts of operators; lines are added, and never changed';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".number IS 'names it, in the order of the lines';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".at IS 'when it was written, by the clock of the database';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".role IS 'the user of the database who wrote it';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".act IS 'the same for both lines of an act';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".phase IS 'begin or end';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".who IS 'who acts, as the program knows';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".via IS 'how, such as command or password';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".origin IS 'from where: an address, or a host';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".action IS 'what is done';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".target IS 'on what, such as a queue';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".filter IS 'what is selected';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".ids IS 'the messages, as far as they are known, at most 100';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".before IS 'SHA-256 of a body that was replaced';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".after IS 'SHA-256 of the body in its place';
COMMENT ON COLUMN "waybill"."waybill_outbox_audit".result IS 'what became of it';

CREATE SEQUENCE "waybill"."waybill_outbox_wake" AS bigint MINVALUE 0 START 0 CACHE 1;
COMMENT ON SEQUENCE "waybill"."waybill_outbox_wake" IS 'until when a relay sleeps, in milliseconds since 1970: staging notifies only until then';
INSERT INTO "waybill"."waybill_meta" (name, value) VALUES ('waybill_outbox.version', 2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;
INSERT INTO "waybill"."waybill_meta" (name, value) VALUES ('waybill_outbox.hlc', 0), ('waybill_outbox.epoch', 1), ('waybill_outbox.cleaner', 0) ON CONFLICT (name) DO NOTHING;

-- 0003_inbox_create
-- Text is compared byte by byte: see the outbox.
CREATE TABLE "waybill"."waybill_inbox" (
    consumer   text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    handled_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    content_hash      bytea,
    PRIMARY KEY (id, source, consumer) -- what tells most comes first: a search compares less
);
CREATE INDEX "waybill_inbox_handled" ON "waybill"."waybill_inbox" (consumer, handled_at);
COMMENT ON TABLE "waybill"."waybill_inbox" IS 'Waybill inbox: one mark for each message that had its effect, written in the handler''s own transaction';
COMMENT ON COLUMN "waybill"."waybill_inbox".consumer IS 'name of the consumer whose effect it was';
COMMENT ON COLUMN "waybill"."waybill_inbox".source IS 'CloudEvents source of the message';
COMMENT ON COLUMN "waybill"."waybill_inbox".id IS 'id of the message';
COMMENT ON COLUMN "waybill"."waybill_inbox".handled_at IS 'when the handler''s transaction marked it';
COMMENT ON COLUMN "waybill"."waybill_inbox".content_hash IS 'hash of the message''s content, if it is known: another message with its id has another';
COMMENT ON INDEX "waybill"."waybill_inbox_pkey" IS 'a second mark for one message waits for the first and is then a no-op';
COMMENT ON INDEX "waybill"."waybill_inbox_handled" IS 'purging: the oldest marks of a consumer';
INSERT INTO "waybill"."waybill_meta" (name, value) VALUES ('waybill_inbox.version', 3) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- 0004_inbox_limits
-- One row for each limit that consumers share. It changes all the time and is tiny: pages with room, and early vacuum.
CREATE TABLE "waybill"."waybill_inbox_limits" (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint           NOT NULL,
    changed_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
    state      text             NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE "waybill"."waybill_inbox_limits" IS 'Waybill: limits that the handlers of several processes share';
COMMENT ON COLUMN "waybill"."waybill_inbox_limits".name IS 'name of the limit: of the queue, or as the subscriptions say';
COMMENT ON COLUMN "waybill"."waybill_inbox_limits".version IS 'raised with each change, which compares it';
COMMENT ON COLUMN "waybill"."waybill_inbox_limits".changed_at IS 'when it changed';
COMMENT ON COLUMN "waybill"."waybill_inbox_limits".state IS 'what the consumers made of it; a row that is deleted begins anew';
COMMENT ON INDEX "waybill"."waybill_inbox_limits_pkey" IS 'the limit to read and to change';
INSERT INTO "waybill"."waybill_meta" (name, value) VALUES ('waybill_inbox.version', 4) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

