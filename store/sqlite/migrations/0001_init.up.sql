-- The outbox: one row a message and route. Published rows are deleted and abandoned ones stay, unless the retention says
-- otherwise.
CREATE TABLE waybill_outbox (
	seq       INTEGER PRIMARY KEY AUTOINCREMENT,      -- staging order; never used twice
	route     TEXT    NOT NULL DEFAULT 'default',     -- lane
	id        TEXT    NOT NULL,                       -- message id
	topic     TEXT    NOT NULL,                       -- routing key
	key       TEXT,                                   -- ordering key; NULL = unordered
	state     INTEGER NOT NULL DEFAULT 1,             -- core.State: 1 pending, 2 processing, 3 published, 4 failed, 5 abandoned
	hold      INTEGER NOT NULL DEFAULT 0,             -- why it waits: 0 it does not, 1 scheduled, 2 leased or put back for later (blocks its key)
	wake_at   INTEGER          DEFAULT 0,             -- microseconds since 1970: when it stops waiting; 0 = claimable, NULL = settled
	settled_at INTEGER,                               -- microseconds since 1970: when it reached a terminal state; NULL = live
	expires_at INTEGER,                               -- microseconds since 1970: when the message loses its value; NULL = never
	due_at    INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000), -- microseconds since 1970: when it was or is first due
	attempts  INTEGER NOT NULL DEFAULT 0,             -- how often the broker said no
	crashes   INTEGER NOT NULL DEFAULT 0,             -- how often a lease on it expired
	token     INTEGER NOT NULL DEFAULT 0,             -- fencing token of its newest claim
	hlc       INTEGER NOT NULL DEFAULT 0,             -- hybrid logical clock stamp; 0 = none
	owner     TEXT,                                   -- who claimed it last
	reason    TEXT,                                   -- why it was abandoned
	error     TEXT,                                   -- newest error, without payload
	error_at  INTEGER,                                -- microseconds since 1970: when that was
	attrs     TEXT    NOT NULL DEFAULT '{}',          -- the rest of the envelope as JSON
	body      BLOB,                                   -- payload
	maybe_sent INTEGER NOT NULL DEFAULT 0,            -- 1: it may have been delivered, since the result of a try is unknown
	dedupe_key TEXT                                   -- there is one live message with it on its route and topic; NULL = any number
) STRICT;

-- Staging the same message on the same route again is a no-op.
CREATE UNIQUE INDEX waybill_outbox_id ON waybill_outbox (route, id);
-- Staging the dedupe key of a live message is a no-op; finding it to cancel or replace it.
CREATE UNIQUE INDEX waybill_outbox_dedupe ON waybill_outbox (route, topic, dedupe_key) WHERE dedupe_key IS NOT NULL AND settled_at IS NULL;
-- What can be claimed, in staging order (wake_at = 0), and the next timer, retry or lease expiry (wake_at > 0).
CREATE INDEX waybill_outbox_due ON waybill_outbox (route, wake_at) WHERE wake_at IS NOT NULL;
-- Whether an earlier message of a key is leased, waits for a retry or comes first.
CREATE INDEX waybill_outbox_key ON waybill_outbox (route, key, hold, wake_at) WHERE key IS NOT NULL AND wake_at IS NOT NULL;
-- Claimable messages whose relays died.
CREATE INDEX waybill_outbox_crashed ON waybill_outbox (route) WHERE crashes > 0 AND wake_at = 0;
-- Abandoned messages, by key.
CREATE INDEX waybill_outbox_abandoned ON waybill_outbox (route, key) WHERE state = 5;
-- Abandoned messages, in staging order.
CREATE INDEX waybill_outbox_gone ON waybill_outbox (seq) WHERE state = 5;
-- Published (0), abandoned (1) and withdrawn (2) messages by time, for cleaning.
CREATE INDEX waybill_outbox_settled ON waybill_outbox (
	CASE WHEN reason IS NULL THEN 0 WHEN reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END, settled_at) WHERE settled_at IS NOT NULL;
-- Messages that expire while they wait.
CREATE INDEX waybill_outbox_expires ON waybill_outbox (expires_at) WHERE expires_at IS NOT NULL AND settled_at IS NULL;

-- The inbox: one row an effect that was committed.
CREATE TABLE waybill_inbox (
	consumer   TEXT    NOT NULL,                      -- whose effect
	source     TEXT    NOT NULL,                      -- source and id: the message's identity
	id         TEXT    NOT NULL,
	handled_at INTEGER NOT NULL,                      -- microseconds since 1970
	PRIMARY KEY (consumer, source, id)
) STRICT, WITHOUT ROWID;

-- The oldest marks of a consumer, to be purged.
CREATE INDEX waybill_inbox_handled ON waybill_inbox (consumer, handled_at);

-- One row each: version (of this schema), token (newest fencing token), hlc (highest stamp that was settled), cleaner (end of
-- its lease, in microseconds since 1970, and who holds it).
CREATE TABLE waybill_meta (
	name  TEXT    NOT NULL PRIMARY KEY,
	value INTEGER NOT NULL,
	owner TEXT
) STRICT, WITHOUT ROWID;
INSERT INTO waybill_meta (name, value) VALUES ('version', 1), ('token', 0), ('hlc', 0), ('cleaner', 0);
