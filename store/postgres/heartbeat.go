package postgres

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// Heartbeat joins, renews or reads. It is one transaction, but for removals: each is one of its own after the renewal,
// so that no renewal waits for the locks of a removal. Of a member whose records a transaction has locked, the holds on
// these stay, as holds of no member, uncounted. The transactions are
//
//  1. with evictions: the renewal. A member that is removed itself evicts no other.
//  2. each eviction. If the row of that member is locked, connections that hold it and send nothing are ended, and the
//     eviction is tried once more. A member that is still locked is left out.
//  3. the renewal, unless 1 has done it, with transfers, suspicions and a leave. It reads the membership that is
//     returned.
//  4. if a route has partitions that no member serves or owns: their removal.
func (o *Outbox) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	var membership core.Membership
	var now drawn
	from := o.floor.look()
	now.floor = from.after
	if m.Self.Session == 0 {
		m = core.HeartbeatRequest{Self: core.Member{Routes: m.Self.Routes}, AfterNotice: m.AfterNotice}
	}
	if len(m.Evict) > 0 {
		err := o.transact(ctx, "heartbeat", writeSQL, func(b *batch) {
			queueSelf(b, &m)
			queueMembership(b, &m, &membership, &now)
		})
		if err != nil {
			return core.Membership{}, err
		}
		if !membership.IsMember {
			return membership, nil
		}
		for _, r := range m.Evict {
			remove := func() error {
				return o.transact(ctx, "remove a member", writeSQL, func(b *batch) { queueEnd(b, r.Session, r.Heartbeats, true) })
			}
			err := remove()
			if locked(err) {
				if err = o.transact(ctx, "end what a member left open", writeSQL, func(b *batch) { b.Queue(b.sql.heartbeat.reap) }); err == nil {
					err = remove()
				}
			}
			if err != nil && !locked(err) { // a member that is still locked is left out
				return core.Membership{}, err
			}
		}
	}
	err := o.transact(ctx, "heartbeat", writeSQL, func(b *batch) {
		if len(m.Evict) == 0 && !m.Leave {
			queueSelf(b, &m)
		}
		queueTransfers(b, &m)
		queueSuspicions(b, &m)
		if m.Leave && m.Self.Session != 0 {
			queueEnd(b, m.Self.Session, 0, false)
		}
		queueMembership(b, &m, &membership, &now)
	})
	if err == nil && membership.IsMember && idle(&membership) {
		err = o.transact(ctx, "heartbeat", writeSQL, func(b *batch) {
			b.Queue(b.sql.heartbeat.tidy)
			queueMembership(b, &m, &membership, &now)
		})
	}
	if err != nil {
		return core.Membership{}, err
	}
	o.waiter.Saw(now.last, now.lastNotice, now.xmin)
	if !o.floor.saw(from, membership.StoreEpoch, &now) {
		membership.HasNotices = true // maybe: a read finds out
	}
	return membership, nil
}

// idle reports whether a route has partitions, and no member serves it or owns one of them.
func idle(r *core.Membership) bool {
	used := map[string]bool{}
	for i := range r.Members {
		for _, sv := range r.Members[i].Routes {
			used[sv.Route] = true
		}
	}
	for i := range r.Partitions {
		used[r.Partitions[i].Partition.Route] = used[r.Partitions[i].Partition.Route] || r.Partitions[i].Owner != 0
	}
	return slices.ContainsFunc(r.Partitions, func(u core.PartitionState) bool { return !used[u.Partition.Route] })
}

// locked reports a row that another transaction has locked.
func locked(err error) bool { return dberr.SQLState(err) == "55P03" }

// queueSelf joins or renews self, and makes partitions. A member that leaves joins no more.
func queueSelf(b *batch, m *core.HeartbeatRequest) {
	self := &m.Self
	if self.Session == 0 {
		return
	}
	n := len(self.Routes)
	routes, partitions, unavailable := make([]string, n), make([]int16, n), make([]bool, n)
	out, oldest := make([]int32, n), make([]int64, n)
	for i, sv := range self.Routes {
		routes[i], partitions[i], unavailable[i] = sv.Route, int16(min(max(sv.InitialPartitions, 1), core.NumSlots)), sv.Unavailable
		out[i], oldest[i] = int32(min(sv.HandedOut, math.MaxInt32)), sv.OldestHandedOut.Microseconds()
	}
	sql := b.sql.heartbeat.renew
	if m.Join && !m.Leave {
		sql = b.sql.heartbeat.join
	}
	b.Queue(sql, int64(self.Session), self.Heartbeats, self.Lease.Microseconds(), self.Presence, self.Capacity, self.FreeCapacity, self.Name,
		routes, partitions, unavailable, out, oldest)
	if !m.Leave {
		b.Queue(b.sql.heartbeat.routes, int64(self.Session), routes)
		b.Queue(b.sql.heartbeat.partitions, int64(self.Session), routes, partitions)
	}
}

func queueSuspicions(b *batch, m *core.HeartbeatRequest) {
	if len(m.Suspect) == 0 {
		return
	}
	sessions, tokens := make([]int64, len(m.Suspect)), make([]int64, len(m.Suspect))
	for i, f := range m.Suspect {
		sessions[i], tokens[i] = int64(f.Session), f.Presence
	}
	b.Queue(b.sql.heartbeat.suspect, int64(m.Self.Session), sessions, tokens)
}

// queueEnd ends a session: that of a member that leaves, or of one that is removed if its number of heartbeats is still
// the given one, or if it has no row. The lock of the member's row comes first: each transaction of that member holds
// the row FOR KEY SHARE, so that none is under way afterwards. Each statement sees what was committed before the lock.
func queueEnd(b *batch, session core.Session, heartbeats int64, removed bool) {
	lock, crashes := b.sql.heartbeat.lockMember, 0
	if removed {
		lock, crashes = b.sql.heartbeat.lockMemberNow, 1
	}
	b.Queue(lock, int64(session))
	b.Queue(b.sql.heartbeat.endHolds, int64(session), heartbeats, crashes)
	b.Queue(b.sql.heartbeat.endPartitions, int64(session), heartbeats, crashes)
	b.Queue(b.sql.heartbeat.end, int64(session), heartbeats, crashes)
	b.Queue(b.sql.heartbeat.tidy)
}

// queueTransfers makes the transfers: those of one partition in their order, and partitions in the order in which all
// transactions lock them.
func queueTransfers(b *batch, m *core.HeartbeatRequest) {
	transfers := slices.SortedStableFunc(slices.Values(m.Transfers), func(x, y core.Transfer) int {
		return cmp.Or(strings.Compare(x.Partition.Route, y.Partition.Route), cmp.Compare(x.Partition.From, y.Partition.From))
	})
	for _, v := range transfers {
		b.Queue(b.sql.heartbeat.transfer, int64(m.Self.Session), v.Partition.Route, int16(v.Partition.From), int16(v.Partition.To),
			int64(v.From), int64(v.To), v.ReadAfter, v.MaybeOutUpTo, m.Self.Heartbeats, m.StoreEpoch)
	}
}

// drawn are the last numbers of the database when a membership was read, as in a look of Wait. For the floor of the
// notices they have the first notice above it, and the id of the transaction; 0 = none.
type drawn struct{ last, lastNotice, xmin, floor, notice, id int64 }

// queueMembership reads the members and the owners of the partitions.
func queueMembership(b *batch, m *core.HeartbeatRequest, membership *core.Membership, now *drawn) {
	*membership = core.Membership{}
	b.each(func(rows pgx.Rows) error {
		var u core.PartitionState
		err := rows.Scan(&u.Partition.Route, &u.Partition.From, &u.Partition.To, (*int64)(&u.Owner), &u.Term, &u.ReadAfter, &u.MaybeOutUpTo)
		membership.Partitions = append(membership.Partitions, u)
		return err
	}, b.sql.heartbeat.membershipPartitions)
	b.each(func(rows pgx.Rows) error {
		var v core.Member
		var lease int64
		var routes []string
		var partitions []int16
		var unavailable []bool
		var out []int32
		var oldest []int64
		err := rows.Scan((*int64)(&v.Session), &v.Name, &v.Heartbeats, &lease, &v.Capacity, &v.FreeCapacity, &v.Presence, &v.PresenceLost, &v.Suspected,
			&routes, &partitions, &out, &oldest, &unavailable)
		if err != nil {
			return err
		}
		v.Lease = time.Duration(lease) * time.Microsecond
		for i := range min(len(routes), len(partitions), len(unavailable), len(out), len(oldest)) {
			v.Routes = append(v.Routes, core.ServedRoute{
				Route: routes[i], InitialPartitions: int(partitions[i]), Unavailable: unavailable[i],
				HandedOut: int(out[i]), OldestHandedOut: time.Duration(oldest[i]) * time.Microsecond,
			})
		}
		membership.Members = append(membership.Members, v)
		membership.IsMember = membership.IsMember || v.Session == m.Self.Session
		return nil
	}, b.sql.heartbeat.membershipMembers)
	served := make([]string, len(m.Self.Routes))
	for i := range served {
		served[i] = m.Self.Routes[i].Route
	}
	b.Queue(b.sql.heartbeat.membership, served, max(m.AfterNotice, now.floor), now.floor).QueryRow(func(row pgx.Row) error {
		return row.Scan(&membership.StoreEpoch, &membership.HasNotices, &now.notice, &now.id, &now.last, &now.lastNotice, &now.xmin)
	})
}
