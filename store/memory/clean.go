package memory

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// cleanBatch bounds the records of each kind that one call of Clean touches: expired, published, abandoned, cancelled.
const cleanBatch = 1000

// election is the cleaner's lease.
type election struct {
	owner string
	until time.Time // end of the owner's lease
}

var _ core.Cleaner = (*Store)(nil)

// Clean keeps the store small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they
// waited. It deletes up to 1,000 records each of those published, abandoned and cancelled whose retention has expired.
// The owner of a key is told about a record that blocked the key.
//
// It abandons expired records that are scheduled or wait for a retry, and due ones in partitions without owner. Records
// that a member holds, and other due records, are left to their owner, which abandons them when it is their turn.
func (s *Store) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	if err := core.CheckClean(owner, lease); err != nil {
		return core.Cleaned{}, err
	}
	if err := ctx.Err(); err != nil {
		return core.Cleaned{}, outage("clean", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if owner != s.cleaner.owner && now.Before(s.cleaner.until) {
		return core.Cleaned{}, nil
	}
	s.cleaner = election{owner, now.Add(lease)}
	done := core.Cleaned{Leader: true, Expired: s.sweep(now), Deleted: map[core.CleanedKind]int{}}
	done.More = done.Expired >= cleanBatch
	for _, class := range core.RetentionClasses() {
		done.More = s.purge(class, now, done.Deleted) >= cleanBatch || done.More
	}
	return done, nil
}

// sweep abandons records that expired while they waited.
func (s *Store) sweep(now time.Time) int {
	var list []*record
	for _, name := range s.names() {
		for r := range s.routes[name].expires.all() {
			if r.env.Expires.After(now) || len(list) == cleanBatch {
				break
			}
			f := r.facts()
			if ends, _ := rules.Sweeps(&f, r.partition()); ends && r.lock == nil {
				list = append(list, r)
			}
		}
	}
	for _, r := range list {
		f := r.facts()
		_, tells := rules.Sweeps(&f, r.partition())
		s.abandon(r, waybill.ReasonExpired, now)
		if tells {
			s.tellOwner(r)
		}
	}
	return len(list)
}

// purge deletes records of one class that were settled long enough ago, the oldest of each route first.
func (s *Store) purge(class core.RetentionClass, now time.Time, deleted map[core.CleanedKind]int) int {
	var list []*record
	for _, name := range s.names() {
		for r := range s.routes[name].settled[class].all() {
			if now.Sub(r.settledAt) < r.class().KeptFor(s.retention) || len(list) == cleanBatch {
				break
			}
			if r.lock == nil {
				list = append(list, r)
			}
		}
	}
	for _, r := range list {
		s.unplace(r)
		s.forget(r)
		if f := r.facts(); rules.Tells(&f) {
			s.tellOwner(r)
		}
		deleted[core.CleanedKind{State: r.state, Reason: r.reason}]++
	}
	return len(list)
}
