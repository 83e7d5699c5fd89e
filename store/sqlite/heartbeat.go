package sqlite

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
	// renewText joins or renews.
	renewText = `INSERT INTO waybill_outbox_members (session, heartbeats, lease, presence, capacity, free_capacity, suspected, name, routes,
		joined_at, renewed_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)
		ON CONFLICT (session) DO UPDATE
			SET heartbeats = ?2, lease = ?3, presence = ?4, capacity = ?5, free_capacity = ?6, suspected = ?7, name = ?8, routes = ?9,
				renewed_at = ?10`
	suspectText = `UPDATE waybill_outbox_members SET suspected = 1 WHERE session = ?1`

	keptText  = `DELETE FROM waybill_outbox_routes WHERE route = ?1 RETURNING read_after, uncertain_up_to, term`
	hintText  = `SELECT read_after, uncertain_up_to, term FROM waybill_outbox_routes WHERE route = ?1`
	ownerText = `SELECT owner, term FROM waybill_outbox_partitions WHERE route = ?1 AND from_slot = ?2 AND to_slot = ?3`

	endHoldsText = `UPDATE waybill_outbox
		SET hold = 0, held_since = NULL, maybe_sent = 1, crashes = crashes + ?2, version = version + ?2
		WHERE hold = ?1 AND hold <> 0`
	endText = `DELETE FROM waybill_outbox_members WHERE session = ?1`

	savePartitionText = `INSERT INTO waybill_outbox_partitions (route, from_slot, to_slot, owner, term, read_after, uncertain_up_to) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		ON CONFLICT (route, from_slot) DO UPDATE
			SET owner = excluded.owner, term = excluded.term, read_after = excluded.read_after, uncertain_up_to = excluded.uncertain_up_to`
	keepHintText       = `INSERT OR REPLACE INTO waybill_outbox_routes (route, read_after, uncertain_up_to, term) VALUES (?1, ?2, ?3, ?4)`
	dropPartitionsText = `DELETE FROM waybill_outbox_partitions WHERE route = ?1`
)

// Heartbeat joins, renews or reads, as [rules.Heartbeat] says. A call that only reads takes no lock.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (membership core.Membership, err error) {
	heartbeat := func(w *work) (known bool, err error) {
		if membership, err = w.membership(ctx, m.Self.Session); err != nil {
			return false, err
		}
		known = membership.IsMember
		if err = rules.Heartbeat(ctx, w, &membership, &m); err != nil {
			return false, err
		}
		membership.HasNotices, err = w.hasNotices(ctx, m.Self.Routes)
		return known || membership.IsMember, err
	}
	if m.Self.Session == 0 {
		err = s.read(ctx, "heartbeat", func(w *work) error {
			_, err := heartbeat(w)
			return err
		})
	} else {
		err = s.write(ctx, "heartbeat", heartbeat)
	}
	if err != nil {
		return core.Membership{}, err
	}
	return membership, nil
}

// Renew is of [rules.MembershipTx].
func (w *work) Renew(ctx context.Context, m *core.Member, _ bool) error {
	routes, err := encodeRoutes(m.Routes)
	if err != nil {
		return err
	}
	_, err = w.exec(ctx, renewText, int64(m.Session), m.Heartbeats, m.Lease.Microseconds(), m.Presence, m.Capacity, m.FreeCapacity, m.Suspected, m.Name, routes, w.now)
	return err
}

// Suspect is of [rules.MembershipTx].
func (w *work) Suspect(ctx context.Context, session core.Session) error {
	_, err := w.exec(ctx, suspectText, int64(session))
	return err
}

// Kept is of [rules.MembershipTx].
func (w *work) Kept(ctx context.Context, route string) (u core.PartitionState, err error) {
	_, err = w.one(ctx, []any{&u.ReadAfter, &u.MaybeOutUpTo, &u.Term}, keptText, route)
	return u, err
}

// End is of [rules.MembershipTx].
func (w *work) End(ctx context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	crashes := 0
	if died {
		crashes = 1
		if last, err = w.last(ctx); err != nil {
			return 0, false, err
		}
	}
	if _, err := w.exec(ctx, endHoldsText, int64(session), crashes); err != nil {
		return 0, false, err
	}
	_, err = w.exec(ctx, endText, int64(session))
	return last, true, err
}

// Transfer is of [rules.MembershipTx]: nobody else writes.
func (*work) Transfer(context.Context, core.Session, core.Session) (bool, error) { return true, nil }

// Save is of [rules.MembershipTx].
func (w *work) Save(ctx context.Context, partitions []core.PartitionState) error {
	for _, u := range partitions {
		if _, err := w.exec(ctx, savePartitionText, u.Partition.Route, u.Partition.From, u.Partition.To, int64(u.Owner), u.Term, u.ReadAfter, u.MaybeOutUpTo); err != nil {
			return err
		}
	}
	return nil
}

// Retire is of [rules.MembershipTx].
func (w *work) Retire(ctx context.Context, kept core.PartitionState) error {
	if _, err := w.exec(ctx, keepHintText, kept.Partition.Route, kept.ReadAfter, kept.MaybeOutUpTo, kept.Term); err != nil {
		return err
	}
	_, err := w.exec(ctx, dropPartitionsText, kept.Partition.Route)
	return err
}

// servedRoute is a route in column routes.
type servedRoute struct {
	Route             string `json:"route"`
	InitialPartitions int    `json:"partitions"`
	Unavailable       bool   `json:"unavailable,omitempty"`

	HandedOut       int           `json:"handed_out,omitempty"`
	OldestHandedOut time.Duration `json:"oldest_handed_out,omitempty"`
}

func encodeRoutes(list []core.ServedRoute) (string, error) {
	out := make([]servedRoute, len(list))
	for i, sv := range list {
		out[i] = servedRoute(sv)
	}
	text, err := json.Marshal(out)
	return string(text), err
}

func decodeRoutes(text string) (out []core.ServedRoute, err error) {
	var list []servedRoute
	err = json.Unmarshal([]byte(text), &list)
	for _, sv := range list {
		out = append(out, core.ServedRoute(sv))
	}
	return out, err
}

// duration returns us microseconds; at most 292 years, which is the longest duration there is.
func duration(us int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(us, -most), most)) * time.Microsecond
}
