-- One row a message and route, until it is published, or longer if the retention says so. Ready is what has neither due_at nor
-- settled_at.
CREATE TABLE waybill_outbox (
	seq          INTEGER PRIMARY KEY AUTOINCREMENT,   -- staging order; never used twice; a timer gets a new one when it comes due
	route        TEXT    NOT NULL DEFAULT 'default',  -- name of the route
	id           TEXT    NOT NULL DEFAULT (lower(hex(randomblob(16)))), -- message id
	topic        TEXT    NOT NULL,                    -- routing key
	key          TEXT    NOT NULL DEFAULT '',         -- ordering key; empty = unordered
	slot         INTEGER,                             -- 0 to 63, from route and key; NULL = whoever reads it computes it
	version      INTEGER NOT NULL DEFAULT 1,          -- grows with every change but a hold
	state        INTEGER NOT NULL DEFAULT 1,          -- 1 pending, 3 published, 4 failed: waits for a retry, 5 abandoned
	due_at       INTEGER,                             -- microseconds since 1970: a schedule, or a retry; NULL = in line
	settled_at   INTEGER,                             -- microseconds since 1970: when it reached a terminal state; NULL = live
	expires_at   INTEGER,                             -- microseconds since 1970: when the message expires; NULL = never
	ready_since  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000), -- microseconds since 1970: when it was or is first due
	hold         INTEGER NOT NULL DEFAULT 0,          -- session of the member that holds it; 0 = none
	held_since   INTEGER,                             -- microseconds since 1970: when the hold was written
	maybe_sent   INTEGER NOT NULL DEFAULT 0,          -- 1: it may have been delivered, since the result of a try is unknown
	cancellable INTEGER NOT NULL DEFAULT 0,          -- 1: it may be cancelled or replaced although it is due
	attempts     INTEGER NOT NULL DEFAULT 0,          -- how often the broker or the handler said no
	deliveries   INTEGER NOT NULL DEFAULT 0,          -- how often it was handed to a handler; only queues count
	crashes      INTEGER NOT NULL DEFAULT 0,          -- how often a member was removed while it held it
	blocks       INTEGER NOT NULL DEFAULT 0,          -- 1: it was abandoned for a reason that holds its key, on routes that block
	hlc          INTEGER NOT NULL DEFAULT 0,          -- hybrid logical clock stamp; 0 = none
	reason       TEXT,                                -- why it was abandoned
	error        TEXT,                                -- newest error, without payload
	error_at     INTEGER,                             -- microseconds since 1970: when that was
	dedupe_key   TEXT,                                -- there is one live message with it on its route and topic; NULL = any number
	attrs        TEXT    NOT NULL DEFAULT '{}',       -- the rest of the envelope as JSON
	body         BLOB                                 -- payload
) STRICT;

-- Staging the same message on the same route again is a no-op.
CREATE UNIQUE INDEX waybill_outbox_id ON waybill_outbox (route, id);
-- Reading a route in staging order.
CREATE INDEX waybill_outbox_ready ON waybill_outbox (route) WHERE due_at IS NULL AND settled_at IS NULL;
-- Reading a key in staging order.
CREATE INDEX waybill_outbox_key ON waybill_outbox (route, key) WHERE key <> '' AND due_at IS NULL AND settled_at IS NULL;
-- The next ones without a key that nobody holds.
CREATE INDEX waybill_outbox_free ON waybill_outbox (route) WHERE key = '' AND hold = 0 AND due_at IS NULL AND settled_at IS NULL;

-- The others are empty, or nearly so, as long as all goes well.
-- Staging the dedupe key of a live message is a no-op; finding it to cancel or replace it.
CREATE UNIQUE INDEX waybill_outbox_dedupe ON waybill_outbox (route, topic, dedupe_key) WHERE dedupe_key IS NOT NULL AND settled_at IS NULL;
-- Schedules and retries, by time.
CREATE INDEX waybill_outbox_timer ON waybill_outbox (route, due_at) WHERE due_at IS NOT NULL AND state = 1;
CREATE INDEX waybill_outbox_retry ON waybill_outbox (route, due_at) WHERE state = 4;
-- What a session holds.
CREATE INDEX waybill_outbox_hold ON waybill_outbox (hold) WHERE hold <> 0;
-- What waits or is held, of a route and of a key, for its new owner.
CREATE INDEX waybill_outbox_waiting ON waybill_outbox (route) WHERE state = 4 OR hold <> 0;
CREATE INDEX waybill_outbox_waiting_key ON waybill_outbox (route, key) WHERE key <> '' AND (state = 4 OR hold <> 0);
-- Abandoned messages that hold their key.
CREATE INDEX waybill_outbox_blocking ON waybill_outbox (route) WHERE blocks = 1;
CREATE INDEX waybill_outbox_blocking_key ON waybill_outbox (route, key) WHERE blocks = 1;
-- Abandoned messages, of a route and in staging order.
CREATE INDEX waybill_outbox_abandoned ON waybill_outbox (route) WHERE state = 5;
CREATE INDEX waybill_outbox_gone ON waybill_outbox (seq) WHERE state = 5;
-- Published (0), abandoned (1) and cancelled (2) messages by time, for cleaning.
CREATE INDEX waybill_outbox_settled ON waybill_outbox (
	CASE WHEN reason IS NULL THEN 0 WHEN reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END, settled_at) WHERE settled_at IS NOT NULL;
-- Messages that expire while they wait.
CREATE INDEX waybill_outbox_expires ON waybill_outbox (expires_at) WHERE expires_at IS NOT NULL AND settled_at IS NULL;

-- The relays and consumers that hand records out.
CREATE TABLE waybill_outbox_members (
	session    INTEGER NOT NULL PRIMARY KEY,          -- random number of one run of one process, never used again
	heartbeats INTEGER NOT NULL,                      -- number of its renewals: a late one has a smaller number and changes nothing
	lease      INTEGER NOT NULL,                      -- for how long heartbeats may stand still until other members remove it, in microseconds
	presence   INTEGER NOT NULL,                      -- token of something that ends with its connection; 0 = none
	capacity   INTEGER NOT NULL,                      -- how many records it can have handed out at once
	free_capacity INTEGER NOT NULL,                   -- how many more records it could be handed
	suspected  INTEGER NOT NULL DEFAULT 0,            -- 1: another member saw that its presence is lost
	joined_at  INTEGER NOT NULL,                      -- microseconds since 1970, for people
	renewed_at INTEGER NOT NULL,                      -- microseconds since 1970, for people
	name       TEXT    NOT NULL,                      -- for people
	routes     TEXT    NOT NULL                       -- JSON: the routes that it serves, the partitions that it would make, whether it is unavailable
) STRICT;

-- Ranges of slots of a route, and who owns them.
CREATE TABLE waybill_outbox_partitions (
	route           TEXT    NOT NULL,
	from_slot       INTEGER NOT NULL,                    -- its first slot
	to_slot         INTEGER NOT NULL,                    -- the slot after its last one
	owner           INTEGER NOT NULL DEFAULT 0,          -- session of the owner; 0 = free
	term            INTEGER NOT NULL DEFAULT 1,          -- grows with each change of the owner
	read_after      INTEGER NOT NULL DEFAULT 0,          -- a new owner reads the records with a greater sequence
	uncertain_up_to INTEGER NOT NULL DEFAULT 0,          -- records up to it may have been handed out by a member that died
	PRIMARY KEY (route, from_slot)
) STRICT, WITHOUT ROWID;

-- The partitions of a member.
CREATE INDEX waybill_outbox_partitions_owner ON waybill_outbox_partitions (owner);

-- What the next partitions of a route that no member serves begin with.
CREATE TABLE waybill_outbox_routes (
	route           TEXT    NOT NULL PRIMARY KEY,
	read_after      INTEGER NOT NULL,
	uncertain_up_to INTEGER NOT NULL,
	term            INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Tells owners that another program changed a record or key that they remember.
CREATE TABLE waybill_outbox_notices (
	number INTEGER PRIMARY KEY AUTOINCREMENT,
	route  TEXT    NOT NULL,
	kind   INTEGER NOT NULL,                          -- 1 a key may be free, 2 a record is ready again, 3 records from a sequence on are, 4 end the record
	slots  INTEGER NOT NULL DEFAULT -1,               -- of kind 3: slots whose owners have not acted on it yet, as bits
	slot   INTEGER NOT NULL DEFAULT 0,                -- the record's slot
	seq    INTEGER NOT NULL DEFAULT 0,                -- the record; of kind 3 the first one
	key    TEXT    NOT NULL DEFAULT '',
	id     TEXT    NOT NULL DEFAULT '',
	reason TEXT    NOT NULL DEFAULT ''                -- of kind 4: why
) STRICT;

-- The notices of a route.
CREATE INDEX waybill_outbox_notices_route ON waybill_outbox_notices (route);

-- Acts of operators: lines are added, and never changed.
CREATE TABLE waybill_outbox_audit (
	number INTEGER PRIMARY KEY AUTOINCREMENT,         -- names it, in the order of the lines
	at     INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000), -- microseconds since 1970: when it was written
	act    TEXT    NOT NULL,                          -- the same for both lines of an act
	phase  TEXT    NOT NULL,                          -- begin or end
	who    TEXT    NOT NULL,                          -- who acts, as the program knows
	via    TEXT    NOT NULL,                          -- how, such as command or password
	origin TEXT    NOT NULL,                          -- from where: an address, or a host
	action TEXT    NOT NULL,                          -- what is done
	target TEXT    NOT NULL,                          -- on what, such as a queue
	filter TEXT    NOT NULL,                          -- what is selected
	ids    TEXT    NOT NULL,                          -- JSON: the messages, as far as they are known, at most 100
	before TEXT    NOT NULL,                          -- SHA-256 of a body that was replaced
	after  TEXT    NOT NULL,                          -- SHA-256 of the body in its place
	result TEXT    NOT NULL                           -- what became of it
) STRICT;
CREATE TRIGGER waybill_outbox_audit_update BEFORE UPDATE ON waybill_outbox_audit BEGIN SELECT RAISE(ABORT, 'the audit record is only added to'); END;
CREATE TRIGGER waybill_outbox_audit_delete BEFORE DELETE ON waybill_outbox_audit BEGIN SELECT RAISE(ABORT, 'the audit record is only added to'); END;
-- A REPLACE deletes without the trigger.
CREATE TRIGGER waybill_outbox_audit_insert BEFORE INSERT ON waybill_outbox_audit WHEN EXISTS (SELECT 1 FROM waybill_outbox_audit WHERE number = NEW.number) BEGIN SELECT RAISE(ABORT, 'the audit record is only added to'); END;

-- One row an effect that was committed.
CREATE TABLE waybill_inbox (
	consumer   TEXT    NOT NULL,                      -- whose effect
	source     TEXT    NOT NULL,                      -- source and id: the message's identity
	id         TEXT    NOT NULL,
	handled_at INTEGER NOT NULL,                      -- microseconds since 1970
	content_hash      BLOB,                                  -- hash of the message's content, if it is known
	PRIMARY KEY (consumer, source, id)
) STRICT, WITHOUT ROWID;

-- The oldest marks of a consumer, to be purged.
CREATE INDEX waybill_inbox_handled ON waybill_inbox (consumer, handled_at);

-- One row each: version (of this schema), database (a random number that tells this one from another), epoch (raised after a
-- restore), hlc (highest stamp that was settled), cleaner (end of its lease, in microseconds since 1970, and who holds it).
CREATE TABLE waybill_meta (
	name  TEXT    NOT NULL PRIMARY KEY,
	value INTEGER NOT NULL,
	owner TEXT
) STRICT, WITHOUT ROWID;
INSERT INTO waybill_meta (name, value) VALUES ('version', 1), ('database', random()), ('epoch', 1), ('hlc', 0), ('cleaner', 0);
