package memory

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/core"
)

// cleanBatch bounds the records of each kind that one call of Clean touches: expired, published, abandoned, withdrawn.
const cleanBatch = 1000

// cleaning is what Clean works with. Its lists may hold entries of records that have moved on since; those are void.
type cleaning struct {
	retention core.Retention
	owner     string
	until     time.Time         // end of the owner's lease
	expires   ordered[moment]   // when records expire
	settled   []ordered[moment] // when kept records were settled: published, abandoned, withdrawn ones
}

// moment is a time in the life of a record.
type moment struct {
	at time.Time
	r  *record
}

func byMoment(a, b moment) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.r.seq, b.r.seq)) }

func newCleaning(r core.Retention) cleaning {
	return cleaning{
		retention: r, expires: ordered[moment]{cmp: byMoment},
		settled: []ordered[moment]{{cmp: byMoment}, {cmp: byMoment}, {cmp: byMoment}},
	}
}

// watch takes note of when a new or requeued record expires.
func (c *cleaning) watch(r *record) {
	if !r.env.Expires.IsZero() {
		c.expires.insert(moment{r.env.Expires, r})
	}
}

// unwatch forgets it.
func (c *cleaning) unwatch(r *record) {
	if !r.env.Expires.IsZero() {
		c.expires.remove(moment{r.env.Expires, r})
	}
}

// retire notes that r has become terminal. A published or withdrawn one that is not to be kept is
// forgotten.
func (s *Store) retire(r *record, now time.Time) {
	s.cleaning.unwatch(r)
	r.settledAt = now
	list := &s.cleaning.settled[1]
	switch keep := s.cleaning.retention.Of(r.state, r.reason); {
	case r.state == core.StatePublished && keep == 0:
		delete(s.rows, rowKey{r.route, r.env.ID})
		return
	case r.reason.Withdrawn() && keep == 0:
		delete(s.rows, rowKey{r.route, r.env.ID})
		s.lane(r.route).counts[r.state]--
		return
	case r.state == core.StatePublished:
		s.lane(r.route).counts[r.state]++ // it was uncounted when it was dropped
		list = &s.cleaning.settled[0]
	case r.reason.Withdrawn():
		list = &s.cleaning.settled[2]
	}
	if s.cleaning.retention.Of(r.state, r.reason) != core.Forever {
		list.insert(moment{now, r})
	}
}

var _ core.Cleaner = (*Store)(nil)

// Clean keeps the store small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they
// waited, and deletes up to 1,000 records each of those published, abandoned and withdrawn whose time in
// Options.Retention is over.
func (s *Store) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	var p []string
	if owner == "" {
		p = append(p, "owner: is empty; name the process that cleans")
	}
	if lease < time.Millisecond {
		p = append(p, fmt.Sprintf("lease: %s; at least a millisecond", lease))
	}
	if err := core.Invalid("waybill/memory: clean", p...); err != nil {
		return core.Cleaned{}, err
	}
	if err := ctx.Err(); err != nil {
		return core.Cleaned{}, outage("clean", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, now := &s.cleaning, s.now()
	if owner != c.owner && now.Before(c.until) {
		return core.Cleaned{}, nil
	}
	c.owner, c.until = owner, now.Add(lease)
	done := core.Cleaned{Elected: true, Expired: s.sweep(now), Deleted: map[core.CleanedKind]int{}}
	done.More = done.Expired >= cleanBatch
	for i := range c.settled {
		n := s.purge(&c.settled[i], now, &done)
		done.More = done.More || n >= cleanBatch
	}
	return done, nil
}

// sweep abandons what expired while it waited. What is leased is its relay's, dead or alive: the next claim decides.
func (s *Store) sweep(now time.Time) (n int) {
	list := &s.cleaning.expires
	for i := 0; i < list.len() && n < cleanBatch; {
		m := list.at(i)
		r := m.r
		switch {
		case m.at.After(now):
			return n
		case r.state.Terminal() || !r.env.Expires.Equal(m.at) || s.rows[rowKey{r.route, r.env.ID}] != r:
			list.remove(m)
			continue
		case r.state == core.StateProcessing || r.reserved != nil:
			i++
			continue
		}
		list.remove(m)
		l := s.lane(r.route)
		l.unplace(r)
		s.release(r)
		if to, ok := core.Next(r.state, core.EventWithdrawn); ok {
			l.setState(r, to)
		}
		r.reason = core.ReasonExpired
		l.drop(r)
		s.retire(r, now)
		s.notify(l)
		n++
	}
	return n
}

// purge deletes from list what was settled long enough ago, the oldest first.
func (s *Store) purge(list *ordered[moment], now time.Time, done *core.Cleaned) (n int) {
	for list.len() > 0 && n < cleanBatch {
		m := list.at(0)
		r := m.r
		row := rowKey{r.route, r.env.ID}
		if !r.state.Terminal() || !r.settledAt.Equal(m.at) || s.rows[row] != r {
			list.remove(m)
			continue
		}
		if keep := s.cleaning.retention.Of(r.state, r.reason); keep == core.Forever || now.Sub(m.at) < keep {
			return n
		}
		list.remove(m)
		delete(s.rows, row)
		l := s.lane(r.route)
		l.counts[r.state]--
		if r.state == core.StateAbandoned {
			l.unblock(r)
			s.notify(l)
		}
		done.Deleted[core.CleanedKind{State: r.state, Reason: r.reason}]++
		n++
	}
	return n
}
