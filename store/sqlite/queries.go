package sqlite

import (
	"context"
	"database/sql"
	"strings"
)

// queries holds the text of every statement, with the prefix in place. The plan test explains all of them.
type queries struct {
	peek, promote, scan, suspects, lease, token string
	publish, keep, settle, extend, mark         string
	next, version, follows                      string
	inbox                                       string
	highWater, routes, span                     string
	countReady, countWaiting, countAbandoned    string
	insert, insertRow, insertEnd                string
	insertKeyed, insertKeyedRow, insertKeyedEnd string
	elect, sweep, purge                         string
	sequence                                    string
	inspect, stored, walk, walkGone             string
	lock, requeue, giveUp, outlived             string
	blocked, heads                              string
}

// The ordering of a key: what may be claimed of it begins with the first of its live messages. It waits while one of
// them is leased or put back for later (hold 2), while a scheduled one that is due was not promoted yet, while an
// earlier one is claimable but lies before the place where this scan began, and, if asked, while one is abandoned.
const keyWaits = `
	EXISTS (SELECT 1 FROM waybill_outbox b INDEXED BY waybill_outbox_key WHERE b.route = o.route AND b.key = o.key AND b.hold = 2 AND b.wake_at > 0)
	OR EXISTS (SELECT 1 FROM waybill_outbox b INDEXED BY waybill_outbox_key
		WHERE b.route = o.route AND b.key = o.key AND b.hold = 1 AND b.wake_at > 0 AND b.wake_at <= :now)
	OR EXISTS (SELECT 1 FROM waybill_outbox b INDEXED BY waybill_outbox_key
		WHERE b.route = o.route AND b.key = o.key AND b.hold = 0 AND b.wake_at = 0 AND b.seq < :first)
	OR :block AND EXISTS (SELECT 1 FROM waybill_outbox b INDEXED BY waybill_outbox_abandoned WHERE b.route = o.route AND b.key = o.key AND b.state = 5
		AND b.reason NOT IN ('cancelled', 'replaced', 'skipped', 'parked'))`

func newQueries(prefix string) queries {
	q := func(text string) string { return strings.ReplaceAll(text, DefaultPrefix, prefix) }
	return queries{
		peek: q(`SELECT EXISTS (SELECT 1 FROM waybill_outbox WHERE route = ?1 AND wake_at = 0),
			(SELECT min(wake_at) FROM waybill_outbox INDEXED BY waybill_outbox_due WHERE route = ?1 AND wake_at > 0)`),
		// What is due becomes claimable, at most 1,000 rows a claim. The state stays: a row that is still "processing" has an
		// expired lease, and its owner may settle it until somebody else takes it over.
		promote: q(`UPDATE waybill_outbox SET wake_at = 0, hold = 0 WHERE seq IN (
			SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_due WHERE route = ?1 AND wake_at > 0 AND wake_at <= ?2 ORDER BY wake_at LIMIT 1000)`),
		scan: q(`SELECT o.seq, o.key, o.topic, length(o.body), o.crashes + (o.state = 2) AS crashed,
			CASE WHEN o.key IS NULL OR NOT :ordered THEN 0 ELSE ` + keyWaits + ` END AS waits
			FROM waybill_outbox o INDEXED BY waybill_outbox_due
			WHERE o.route = :route AND o.wake_at = 0 AND o.seq >= :first AND o.seq <= :last ORDER BY o.seq LIMIT :limit`),
		// A suspect is claimable if it may be claimed at all and is the first of its key.
		suspects: q(`SELECT o.seq, o.topic FROM waybill_outbox o INDEXED BY waybill_outbox_crashed
			WHERE o.route = :route AND o.wake_at = 0 AND o.crashes > 0 AND o.crashes + (o.state = 2) >= :suspect
			AND CASE WHEN o.key IS NULL OR NOT :ordered THEN 1 ELSE NOT (` + strings.ReplaceAll(keyWaits, ":first", "o.seq") + `) END
			ORDER BY o.seq LIMIT 100`),
		token: q(`UPDATE waybill_meta SET value = max(value + 1, ?1) WHERE name = 'token' RETURNING value`),
		lease: q(`UPDATE waybill_outbox SET hold = 2, wake_at = ?2, crashes = crashes + (state = 2), state = 2, token = ?3, owner = ?4
			WHERE seq IN (SELECT value FROM json_each(?1))
			RETURNING seq, route, id, topic, key, due_at, attempts, crashes, hlc, attrs, body`),
		publish: q(`DELETE FROM waybill_outbox WHERE seq IN (SELECT value FROM json_each(?1)) AND token = ?2 AND state = 2 RETURNING seq, key`),
		// With a retention of published records they stay.
		keep: q(`UPDATE waybill_outbox SET state = 3, hold = 0, wake_at = NULL, settled_at = ?3
			WHERE seq IN (SELECT value FROM json_each(?1)) AND token = ?2 AND state = 2 RETURNING seq, key`),
		settle: q(`UPDATE waybill_outbox SET state = ?3, hold = ?4, wake_at = ?5, attempts = attempts + ?6, reason = ?7,
			error = coalesce(?8, error), error_at = CASE WHEN ?8 IS NULL THEN error_at ELSE ?9 END, settled_at = CASE WHEN ?3 = 5 THEN ?9 END,
			maybe_sent = maybe_sent OR ?10 WHERE seq = ?1 AND token = ?2 AND state = 2 RETURNING key`),
		mark:      q(`UPDATE waybill_meta SET value = ?1 WHERE name = 'hlc' AND value < ?1`),
		extend:    q(`UPDATE waybill_outbox SET hold = 2, wake_at = ?3 WHERE seq = ?1 AND token = ?2 AND state = 2`),
		follows:   q(`SELECT EXISTS (SELECT 1 FROM waybill_outbox INDEXED BY waybill_outbox_key WHERE route = ?1 AND key = ?2 AND hold = 0 AND wake_at = 0)`),
		next:      q(`SELECT min(wake_at) FROM waybill_outbox INDEXED BY waybill_outbox_due WHERE route = ?1 AND wake_at > 0`),
		inbox:     q(`INSERT INTO waybill_inbox (consumer, source, id, handled_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING`),
		version:   q(`SELECT value FROM waybill_meta WHERE name = 'version'`),
		sequence:  q(`SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'waybill_outbox'`),
		highWater: q(`SELECT max((SELECT value FROM waybill_meta WHERE name = 'hlc'), coalesce((SELECT max(hlc) FROM (SELECT hlc FROM waybill_outbox ORDER BY seq DESC LIMIT 10000)), 0))`),
		routes: q(`WITH RECURSIVE r(name) AS (
				SELECT (SELECT min(route) FROM waybill_outbox)
				UNION ALL SELECT (SELECT min(route) FROM waybill_outbox WHERE route > r.name) FROM r WHERE r.name IS NOT NULL)
			SELECT name FROM r WHERE name IS NOT NULL LIMIT 10000`),
		countReady: q(`SELECT state, count(*), min(due_at), 0 FROM (SELECT state, due_at FROM waybill_outbox INDEXED BY waybill_outbox_due
			WHERE route = ?1 AND wake_at = 0 LIMIT ?2) GROUP BY state`),
		countWaiting: q(`SELECT state, count(*), min(due_at), 1 FROM (SELECT state, due_at FROM waybill_outbox INDEXED BY waybill_outbox_due
			WHERE route = ?1 AND wake_at > 0 LIMIT ?2) GROUP BY state`),
		countAbandoned: q(`SELECT state, count(*), min(due_at), 1 FROM (SELECT state, due_at FROM waybill_outbox INDEXED BY waybill_outbox_abandoned
			WHERE route = ?1 AND state = 5 LIMIT ?2) GROUP BY state`),
		span: q(`SELECT (SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_due WHERE route = ?1 AND wake_at = 0 ORDER BY seq DESC LIMIT 1)
			- (SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_due WHERE route = ?1 AND wake_at = 0 ORDER BY seq LIMIT 1) + 1`),
		insert:    q(`INSERT INTO waybill_outbox (route, id, topic, key, state, hold, wake_at, due_at, hlc, attrs, body, expires_at) VALUES `),
		insertRow: `(?,?,?,?,1,?,?,?,?,?,?,?)`,
		inspect:   q(inspectText),
		stored:    q(storedText),
		walk:      q(walkText),
		walkGone:  q(walkGoneText),
		lock:      q(lockText),
		requeue:   q(requeueText),
		giveUp:    q(giveUpText),
		outlived:  q(outlivedText),
		heads:     q("SELECT (" + ofKey(retryHeadText, "?2") + "), (" + ofKey(goneHeadText, "?2") + ")"),
		blocked: q("WITH RECURSIVE r(key, n) AS (SELECT (" + ofKey(nextKeyText, "?2") + "), 1 UNION ALL SELECT (" + ofKey(nextKeyText, "r.key") + "), r.n + 1 FROM r WHERE r.key IS NOT NULL AND r.n < ?4) SELECT r.key, (" +
			ofKey(retryHeadText, "r.key") + "), CASE WHEN ?5 THEN (" + ofKey(goneHeadText, "r.key") + ") END FROM r WHERE r.key IS NOT NULL"),
		elect:     q(`UPDATE waybill_meta SET owner = ?1, value = ?2 + ?3 WHERE name = 'cleaner' AND (owner = ?1 OR value NOT BETWEEN ?2 AND ?2 + ?4)`),
		sweep:     q(sweepText),
		purge:     q(purgeText),
		insertEnd: ` ON CONFLICT (route, id) DO NOTHING RETURNING route, id`,
		// Messages of which some have a dedupe key.
		insertKeyed:    q(`INSERT INTO waybill_outbox (route, id, topic, key, state, hold, wake_at, due_at, hlc, attrs, body, expires_at, dedupe_key) VALUES `),
		insertKeyedRow: `(?,?,?,?,1,?,?,?,?,?,?,?,?)`,
		insertKeyedEnd: ` ON CONFLICT DO NOTHING RETURNING route, id`,
	}
}

// statements are the repeated ones, prepared once.
type statements struct {
	peek, promote, scan, suspects, lease, token, publish, settle, mark, extend, next, inbox, follows *sql.Stmt
}

func (st *statements) all() []**sql.Stmt {
	return []**sql.Stmt{
		&st.peek, &st.promote, &st.scan, &st.suspects, &st.lease, &st.token, &st.publish, &st.settle, &st.mark, &st.extend, &st.next, &st.inbox, &st.follows,
	}
}

func (st *statements) close() {
	if st == nil {
		return
	}
	for _, p := range st.all() {
		if *p != nil {
			_ = (*p).Close()
		}
	}
}

// prepared returns the prepared statements, migrating before the first use if that was asked for.
func (s *Store) prepared(ctx context.Context, op string) (*statements, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, s.classify(op, sql.ErrConnDone)
	}
	if s.stmts != nil {
		return s.stmts, nil
	}
	if s.opts.AutoMigrate && !s.migrated.Load() {
		if err := s.migrate(ctx, newest()); err != nil {
			return nil, err
		}
		s.migrated.Store(true)
	}
	if err := s.fits(ctx, s.db); err != nil {
		return nil, s.classify(op, err)
	}
	st := &statements{}
	t := &s.text
	publish := t.publish
	if s.keeps() {
		publish = t.keep
	}
	for i, text := range []string{
		t.peek, t.promote, t.scan, t.suspects, t.lease, t.token, publish, t.settle, t.mark, t.extend, t.next, t.inbox, t.follows,
	} {
		stmt, err := s.db.PrepareContext(ctx, text) //nolint:gosec,sqlclosecheck // nothing foreign in the text but Options.Prefix, which Validate has checked; Close closes it
		if err != nil {
			st.close()
			return nil, s.classify(op, err)
		}
		*st.all()[i] = stmt
	}
	s.stmts = st
	return st, nil
}

// ofKey puts an expression for the key in its place.
func ofKey(text, key string) string { return strings.ReplaceAll(text, "KEY", key) }
