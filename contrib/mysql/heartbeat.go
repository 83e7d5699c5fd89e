package waybillmysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Heartbeat joins, renews or reads, as [rules.Heartbeat] says. A call that changes something waits for others that do.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (out core.Membership, err error) {
	self := m.Self.Session
	err = s.read(ctx, "heartbeat", func(w *work) error { return w.membership(ctx, &m, &out, w.askLast) })
	if err != nil {
		return core.Membership{}, err
	}
	if self == 0 || !out.IsMember && (!m.Join || m.Leave) || idle(&m, &out) {
		return out, nil
	}
	err = s.write(ctx, "heartbeat", func(w *work) (err error) {
		w.self = self
		turn := query{`SELECT 1 FROM waybill_meta WHERE name = 'heartbeat' FOR UPDATE`, nil, func(*sql.Rows) error { return nil }}
		ask := func(ctx context.Context, queries ...query) error {
			return w.ask(ctx, append([]query{turn}, queries...)...)
		}
		if err := w.membership(ctx, &m, &out, ask); err != nil {
			return err
		}
		if err := rules.Heartbeat(ctx, w, &out, &m); err != nil || !w.saved {
			return err
		}
		return w.membership(ctx, &m, &out, w.askLast) // an owner may have released its partition meanwhile
	})
	return out, err
}

// idle reports whether m changes nothing.
func idle(m *core.HeartbeatRequest, now *core.Membership) bool {
	served := map[string]bool{}
	for _, u := range now.Partitions {
		served[u.Partition.Route] = true
	}
	return !m.Leave && len(m.Evict)+len(m.Suspect)+len(m.Transfers) == 0 && find(now, m.Self.Session).Heartbeats >= m.Self.Heartbeats &&
		!slices.ContainsFunc(m.Self.Routes, func(sv core.ServedRoute) bool { return !served[sv.Route] })
}

// find returns a member; a zero one if the session is none.
func find(r *core.Membership, session core.Session) core.Member {
	for _, m := range r.Members {
		if m.Session == session && session != 0 {
			return m
		}
	}
	return core.Member{}
}

// Renew is of [rules.MembershipTx].
func (w *work) Renew(ctx context.Context, m *core.Member, joins bool) error {
	routes, err := json.Marshal(m.Routes)
	if err != nil {
		return err
	}
	if joins {
		if _, err := w.exec(ctx, `INSERT IGNORE INTO waybill_outbox_fence (session) VALUES (?)`, m.Session); err != nil {
			return err
		}
	}
	return w.put(ctx, `REPLACE INTO waybill_outbox_members (session, heartbeats, lease, presence, capacity, free_capacity, suspected, renewed_at, name, routes)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, m.Session, m.Heartbeats, m.Lease.Microseconds(), m.Presence, m.Capacity, m.FreeCapacity, m.Suspected, w.now, m.Name, routes)
}

// Suspect is of [rules.MembershipTx].
func (w *work) Suspect(ctx context.Context, session core.Session) error {
	_, err := w.exec(ctx, `UPDATE waybill_outbox_members SET suspected = 1 WHERE session = ?`, session)
	return err
}

// Kept is of [rules.MembershipTx]. The route is about to get partitions.
func (w *work) Kept(ctx context.Context, route string) (u core.PartitionState, err error) {
	known, err := w.one(ctx, []any{&u.ReadAfter, &u.MaybeOutUpTo, &u.Term}, `SELECT read_after, uncertain_up_to, term FROM waybill_outbox_routes WHERE route = ?`, route)
	if err == nil && known {
		_, err = w.exec(ctx, `DELETE FROM waybill_outbox_routes WHERE route = ?`, route)
	}
	if err == nil {
		err = w.endLines(ctx, route)
	}
	return u, err
}

// End is of [rules.MembershipTx].
func (w *work) End(ctx context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	if ok, err = w.fence(ctx, session); err != nil || !ok {
		return 0, false, err
	}
	seqs, err := collect(ctx, w.q, value[int64], `SELECT seq FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_hold) WHERE hold = ?`, session)
	if err != nil {
		return 0, false, err
	}
	if got, _, err := w.lock(ctx, seqs); err != nil || len(got) < len(seqs) {
		return 0, false, err
	}
	crashes := 0
	if died {
		crashes = 1
		if last, err = w.last(ctx); err != nil {
			return 0, false, err
		}
	}
	if err := w.set(ctx, seqs, `hold = 0, flags = flags | 4, crashes = crashes + ?, version = version + ?`, crashes, crashes); err != nil {
		return 0, false, err
	}
	for _, table := range [...]string{"members", "fence"} {
		if _, err := w.exec(ctx, `DELETE FROM waybill_outbox_`+table+` WHERE session = ?`, session); err != nil {
			return 0, false, err
		}
	}
	return last, true, nil
}

// Transfer is of [rules.MembershipTx].
func (w *work) Transfer(ctx context.Context, from, _ core.Session) (bool, error) {
	if from == 0 || from == w.self {
		return true, nil
	}
	return w.fence(ctx, from)
}

// fence keeps a session from changing anything until this transaction ends, and reports whether it could.
func (w *work) fence(ctx context.Context, session core.Session) (bool, error) {
	return w.one(ctx, []any{&session}, `SELECT session FROM waybill_outbox_fence WHERE session = ? FOR UPDATE SKIP LOCKED`, session)
}

// Save is of [rules.MembershipTx]. Releases can run meanwhile: they raise the term.
func (w *work) Save(ctx context.Context, partitions []core.PartitionState) error {
	var args []any
	for _, u := range partitions {
		args = append(args, u.Partition.Route, u.Partition.From, u.Partition.To, u.Owner, u.Term, u.ReadAfter, u.MaybeOutUpTo)
	}
	w.saved = true
	const later = `IF(term < VALUES(term) OR term = VALUES(term) AND owner = VALUES(owner), `
	_, err := w.exec(ctx, `INSERT INTO waybill_outbox_partitions (route, from_slot, to_slot, owner, term, read_after, uncertain_up_to) VALUES `+
		strings.Repeat(`, (?, ?, ?, ?, ?, ?, ?)`, len(partitions))[2:]+` ON DUPLICATE KEY UPDATE read_after = `+later+`VALUES(read_after), read_after),
		uncertain_up_to = `+later+`VALUES(uncertain_up_to), uncertain_up_to), owner = IF(term < VALUES(term), VALUES(owner), owner), term = GREATEST(term, VALUES(term))`, args...)
	return err
}

// Retire is of [rules.MembershipTx].
func (w *work) Retire(ctx context.Context, kept core.PartitionState) error {
	if _, err := w.exec(ctx, `REPLACE INTO waybill_outbox_routes (route, read_after, uncertain_up_to, term) VALUES (?, ?, ?, ?)`,
		kept.Partition.Route, kept.ReadAfter, kept.MaybeOutUpTo, kept.Term); err != nil {
		return err
	}
	_, err := w.exec(ctx, `DELETE FROM waybill_outbox_partitions WHERE route = ?`, kept.Partition.Route)
	return err
}

// membership fills in everything by ask, which makes one call of the queries. PresenceLost is a presence without its
// lock, if the member has renewed since the start of the server, which loses all locks. That time is known to the
// second: a member that is suspected wrongly renews.
func (w *work) membership(ctx context.Context, m *core.HeartbeatRequest, out *core.Membership, ask func(ctx context.Context, queries ...query) error) error {
	*out = core.Membership{}
	noticesOf := []any{m.AfterNotice}
	for _, sv := range m.Self.Routes {
		noticesOf = append(noticesOf, sv.Route)
	}
	var renewed []int64
	err := ask(ctx, query{
		`SELECT ` + nowSQL + `, ` + epochSQL + `, EXISTS (SELECT 1 FROM ` + noticesSQL + places(len(m.Self.Routes)) + `)`, noticesOf,
		func(rows *sql.Rows) error { return rows.Scan(&w.now, &out.StoreEpoch, &out.HasNotices) },
	}, query{`SELECT session, name, heartbeats, lease, capacity, free_capacity, presence, suspected, routes, renewed_at,
		presence <> 0 AND IS_USED_LOCK(CONCAT('waybill:', presence)) IS NULL FROM waybill_outbox_members ORDER BY session`, nil, func(rows *sql.Rows) error {
		var x core.Member
		var lease, at int64
		var routes []byte
		if err := rows.Scan(&x.Session, &x.Name, &x.Heartbeats, &lease, &x.Capacity, &x.FreeCapacity, &x.Presence, &x.Suspected, &routes, &at, &x.PresenceLost); err != nil {
			return err
		}
		x.Lease = duration(lease)
		out.Members, renewed = append(out.Members, x), append(renewed, at)
		return json.Unmarshal(routes, &out.Members[len(out.Members)-1].Routes)
	}}, query{partitionsSQL + `ORDER BY route, from_slot`, nil, func(rows *sql.Rows) error {
		u, err := scanPartition(rows)
		out.Partitions = append(out.Partitions, u)
		return err
	}})
	if err != nil {
		return err
	}
	out.IsMember = find(out, m.Self.Session).Session != 0
	if !slices.ContainsFunc(out.Members, func(m core.Member) bool { return m.PresenceLost }) {
		return nil
	}
	var name string
	var uptime int64
	_, err = w.one(ctx, []any{&name, &uptime}, `SHOW GLOBAL STATUS LIKE 'Uptime'`)
	for i := range out.Members {
		out.Members[i].PresenceLost = out.Members[i].PresenceLost && renewed[i] >= (w.now/1e6-uptime)*1e6
	}
	return err
}
