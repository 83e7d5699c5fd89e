-- Version 1. Every name is VARBINARY: text collations ignore case or trailing spaces. Times are microseconds since
-- 1970, by this server's clock; 0 = none. Each statement can run again.

-- One row a message and route, until it is published, or longer if the retention says so. The primary key is the order
-- of dispatch.
CREATE TABLE IF NOT EXISTS waybill_outbox (
	seq         BIGINT           NOT NULL AUTO_INCREMENT, -- staging order; a timer gets a new one when it comes due
	route       VARBINARY(300)   NOT NULL,
	id          VARBINARY(255)   NOT NULL,
	topic       VARBINARY(255)   NOT NULL,
	source      VARBINARY(255)   NOT NULL DEFAULT '',
	k           VARBINARY(255)   NOT NULL,            -- ordering key; empty = unordered
	slot        TINYINT UNSIGNED NOT NULL,            -- 0 to 63, from route and key, or from route and id
	version     BIGINT           NOT NULL DEFAULT 1,  -- grows with every change but a hold
	state       TINYINT          NOT NULL DEFAULT 1,  -- 1 pending, 3 published, 4 waits for a retry, 5 abandoned, 6 cancelled
	due_at      BIGINT           NOT NULL DEFAULT 0,  -- of a schedule or a retry; 0 = ready, or ended
	ends_at     BIGINT           NOT NULL DEFAULT 0,  -- live: when it expires; ended: when it ended
	ready_since BIGINT           NOT NULL DEFAULT 0,  -- when it was or is first due
	hold        BIGINT           NOT NULL DEFAULT 0,  -- session of the member that holds it
	flags       TINYINT UNSIGNED NOT NULL DEFAULT 0,  -- 1 blocks its key, 2 cancellable, 4 maybe sent
	attempts    INT              NOT NULL DEFAULT 0,
	deliveries  INT              NOT NULL DEFAULT 0,
	crashes     INT              NOT NULL DEFAULT 0,
	hlc         BIGINT           NOT NULL DEFAULT 0,
	reason      VARBINARY(255)   NOT NULL DEFAULT '', -- why it was abandoned
	error       VARBINARY(1000)  NOT NULL DEFAULT '', -- newest error, without payload
	error_at    BIGINT           NOT NULL DEFAULT 0,
	dedupe_key  VARBINARY(511)   NOT NULL DEFAULT '', -- tenant, a byte 31, and key; or key; empty = none
	attrs       MEDIUMBLOB       NOT NULL,            -- the rest of the envelope: names and values, each with its length
	body        LONGBLOB         NOT NULL,
	PRIMARY KEY (seq),
	UNIQUE KEY waybill_outbox_id (id, route),
	KEY waybill_outbox_key (route, k, state, due_at),
	CONSTRAINT waybill_outbox_slot CHECK (slot < 64)  -- nobody would read a record of another one
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What is looked for by more than its place or its key, which is why most messages pay for three indexes only: records
-- that wait for a time, expire, are or were held, or have ended. Each change of such a record copies it here. Two rows
-- of a route are no records, and end its lines: the one that is pending and the one that waits for a retry with the
-- greatest due_at. Their numbers are below -1.
CREATE TABLE IF NOT EXISTS waybill_outbox_aside (
	seq     BIGINT           NOT NULL PRIMARY KEY,
	route   VARBINARY(300)   NOT NULL,
	k       VARBINARY(255)   NOT NULL,
	slot    TINYINT UNSIGNED NOT NULL,
	state   TINYINT          NOT NULL,
	due_at  BIGINT           NOT NULL,
	ends_at BIGINT           NOT NULL,
	hold    BIGINT           NOT NULL,
	flags   TINYINT UNSIGNED NOT NULL,
	KEY waybill_outbox_line (route, state, due_at, seq, slot),
	KEY waybill_outbox_waits (route, k, state),
	KEY waybill_outbox_hold (hold),
	KEY waybill_outbox_ends (state, ends_at)
) ENGINE = InnoDB;

-- Who has a dedupe key: one live message of a route and topic.
CREATE TABLE IF NOT EXISTS waybill_outbox_dedupe (
	dedupe_key VARBINARY(511) NOT NULL,
	topic      VARBINARY(255) NOT NULL,
	route      VARBINARY(300) NOT NULL,
	id         VARBINARY(255) NOT NULL,
	PRIMARY KEY (dedupe_key, topic, route)
) ENGINE = InnoDB;

-- A transaction locks one of these rows for share before it draws its first number. A free row has no such transaction.
CREATE TABLE IF NOT EXISTS waybill_outbox_marks (
	g SMALLINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- The relays and consumers that hand records out.
CREATE TABLE IF NOT EXISTS waybill_outbox_members (
	session    BIGINT         NOT NULL PRIMARY KEY,
	heartbeats BIGINT         NOT NULL,
	lease      BIGINT         NOT NULL,               -- in microseconds
	presence   BIGINT         NOT NULL,               -- token of a lock that ends with its connection
	capacity   INT            NOT NULL,
	free_capacity INT         NOT NULL,
	suspected  TINYINT        NOT NULL,               -- 1: another member saw that its presence is lost
	renewed_at BIGINT         NOT NULL,
	name       VARBINARY(1000) NOT NULL,
	routes     LONGBLOB       NOT NULL                -- JSON
) ENGINE = InnoDB;

-- The rows that a member's statements lock for share and its removal locks for itself. Renewals do not touch them.
CREATE TABLE IF NOT EXISTS waybill_outbox_fence (
	session BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- Ranges of slots of a route, and who owns them.
CREATE TABLE IF NOT EXISTS waybill_outbox_partitions (
	route           VARBINARY(300)   NOT NULL,
	from_slot       TINYINT UNSIGNED NOT NULL,
	to_slot         TINYINT UNSIGNED NOT NULL,
	owner           BIGINT           NOT NULL DEFAULT 0,
	term            BIGINT           NOT NULL,
	read_after      BIGINT           NOT NULL,
	uncertain_up_to BIGINT           NOT NULL,
	PRIMARY KEY (route, from_slot),
	KEY waybill_outbox_partitions_owner (owner)
) ENGINE = InnoDB;

-- What the next partitions of a route that no member serves begin with.
CREATE TABLE IF NOT EXISTS waybill_outbox_routes (
	route           VARBINARY(300) NOT NULL PRIMARY KEY,
	read_after      BIGINT         NOT NULL,
	uncertain_up_to BIGINT         NOT NULL,
	term            BIGINT         NOT NULL
) ENGINE = InnoDB;

-- Tells owners that another program changed a record or key that they remember.
CREATE TABLE IF NOT EXISTS waybill_outbox_notices (
	number BIGINT           NOT NULL AUTO_INCREMENT PRIMARY KEY,
	route  VARBINARY(300)   NOT NULL,
	kind   TINYINT          NOT NULL,
	slot   TINYINT UNSIGNED NOT NULL,
	seq    BIGINT           NOT NULL,
	k      VARBINARY(255)   NOT NULL,
	id     VARBINARY(255)   NOT NULL,
	reason VARBINARY(255)   NOT NULL
) ENGINE = InnoDB;

-- Acts of operators. Logins add lines, and the grants let none change or delete one, nor choose its time or its role.
CREATE TABLE IF NOT EXISTS waybill_outbox_audit (
	number      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
	at          BIGINT         NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
	role        VARBINARY(400) NOT NULL DEFAULT (SESSION_USER()), -- login that wrote it
	act         BLOB           NOT NULL,              -- the same for both lines of an act
	phase       VARBINARY(5)   NOT NULL,              -- begin or end
	who         BLOB           NOT NULL,              -- who acts, as the program knows
	via         BLOB           NOT NULL,              -- how, such as command or password
	origin      BLOB           NOT NULL,              -- from where: an address, or a host
	action      BLOB           NOT NULL,
	target      BLOB           NOT NULL,              -- on what, such as a queue
	filter      BLOB           NOT NULL,              -- what is selected
	ids         MEDIUMBLOB     NOT NULL,              -- JSON: the messages, as far as they are known, at most 100
	body_before BLOB           NOT NULL,              -- SHA-256 of a body that was replaced
	body_after  BLOB           NOT NULL,              -- SHA-256 of the body in its place
	result      BLOB           NOT NULL               -- what became of it
) ENGINE = InnoDB;

-- One row an effect that was committed.
CREATE TABLE IF NOT EXISTS waybill_inbox (
	consumer   VARBINARY(255) NOT NULL,
	source     VARBINARY(255) NOT NULL,
	id         VARBINARY(255) NOT NULL,
	handled_at BIGINT         NOT NULL,
	mark       BIGINT         NOT NULL,               -- random number of the transaction that wrote it
	content_hash      VARBINARY(16),                         -- hash of the message's content, if it is known
	PRIMARY KEY (consumer, source, id),
	KEY waybill_inbox_handled (consumer, handled_at)
) ENGINE = InnoDB;

-- version (of this schema), database (a random number), epoch (raise it after a restore), heartbeat (a lock), cleaner
-- (end of its lease, and who holds it), hlc… (a stamp above those that were settled).
CREATE TABLE IF NOT EXISTS waybill_meta (
	name  VARBINARY(64)   NOT NULL PRIMARY KEY,
	value BIGINT          NOT NULL,
	owner VARBINARY(1000) NOT NULL DEFAULT ''
) ENGINE = InnoDB;

INSERT IGNORE INTO waybill_outbox_marks (g)
	SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n FROM
	(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) a, (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) b,
	(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) c, (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) d;

INSERT IGNORE INTO waybill_meta (name, value)
	VALUES ('version', 1), ('database', FLOOR(RAND() * 1000000000000000)), ('epoch', 1), ('heartbeat', 0), ('cleaner', 0);
