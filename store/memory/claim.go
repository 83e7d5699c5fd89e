package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Claim leases records, as core.OutboxStore says. Several routes get fair shares. The records of routes with OrderHLC
// come after all others, in (HLC, sequence) order.
func (s *Store) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	if err := ctx.Err(); err != nil {
		return core.Claim{}, outage("claim", err)
	}
	if err := checkClaim(&req); err != nil {
		return core.Claim{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.turn++
	walks := make([]*walk, len(req.Routes))
	for i := range req.Routes {
		l := s.lane(req.Routes[i].Route)
		l.promote(now)
		// Start with another route each time, so that none is always last.
		walks[(i+s.turn)%len(walks)] = newWalk(l, &req.Routes[i], &req)
	}
	picked, full := pick(walks, &req)
	claim := core.Claim{Records: make([]core.Record, 0, len(picked)), NextIn: -1}
	for _, r := range picked {
		claim.Records = append(claim.Records, s.lease(r, now, &req))
	}
	for _, w := range walks {
		claim.Suspects = claim.Suspects || w.suspects
		if !full {
			w.lane.seen = w.lane.version
		}
		claim.NextIn = w.lane.nextTimer(claim.NextIn, now)
	}
	claim.More = full
	return claim, nil
}

func checkClaim(req *core.ClaimRequest) error {
	var p []string
	if len(req.Routes) == 0 {
		p = append(p, "Routes: none; name at least one")
	}
	for i, r := range req.Routes {
		if slices.ContainsFunc(req.Routes[:i], func(o core.RouteOrder) bool { return o.Route == r.Route }) {
			p = append(p, fmt.Sprintf("Routes[%d]: %q is named twice", i, r.Route))
		}
	}
	if req.MaxRecords < 1 {
		p = append(p, fmt.Sprintf("MaxRecords: %d; at least 1", req.MaxRecords))
	}
	if req.MaxBytes < 0 {
		p = append(p, fmt.Sprintf("MaxBytes: %d is negative; 0 is unbounded", req.MaxBytes))
	}
	if req.Lease < time.Millisecond {
		p = append(p, fmt.Sprintf("Lease: %s; at least a millisecond", req.Lease))
	}
	return core.Invalid("waybill/memory: claim", p...)
}

// pick chooses records within the bounds of req and reports whether there would have been more.
func pick(walks []*walk, req *core.ClaimRequest) (picked []*record, full bool) {
	room, size := req.MaxRecords, int64(0)
	if req.Alone {
		room = 1
	}
	for first := true; ; first = false {
		for i, w := range walks {
			share := room
			if first { // a fair share, and in the second turn what is left
				share = (room + len(walks) - i - 1) / (len(walks) - i)
			}
			for ; share > 0; share-- {
				r := w.peek()
				if r == nil {
					break
				}
				n := int64(len(r.env.Body))
				if req.MaxBytes > 0 && len(picked) > 0 && size+n > req.MaxBytes {
					room, full = 0, true
					break
				}
				picked, size, room = append(picked, r), size+n, room-1
				w.pos = nil
			}
		}
		if !first {
			break
		}
	}
	for _, w := range walks {
		full = full || room == 0 && w.peek() != nil
	}
	stamped := map[string]bool{}
	for _, w := range walks {
		stamped[w.lane.name] = w.order.Order == core.OrderHLC
	}
	slices.SortFunc(picked, func(a, b *record) int {
		switch sa, sb := stamped[a.route], stamped[b.route]; {
		case sa && sb:
			return byHLC(a, b)
		case sa:
			return 1
		case sb:
			return -1
		}
		return bySeq(a, b)
	})
	return picked, full
}

// lease gives r to the claimer and returns what it gets.
func (s *Store) lease(r *record, now time.Time, req *core.ClaimRequest) core.Record {
	l := s.lane(r.route)
	l.unplace(r)
	if r.state == core.StateProcessing {
		r.crashes++
	} else if to, ok := core.Next(r.state, core.EventClaimed); ok {
		l.setState(r, to)
	}
	s.tokens++
	r.owner = req.Owner
	r.token, r.session, r.due = s.tokens, req.Session, now.Add(req.Lease)
	l.place(r, now)
	return core.Record{
		Envelope: r.env.Clone(), Route: r.route, Seq: r.seq, Attempts: r.attempts, Crashes: r.crashes,
		Age: max(now.Sub(r.since), 0), Failed: r.failed, Lease: core.Lease{Token: r.token, Remaining: req.Lease}, Err: r.unreadable,
	}
}

// walk yields the claimable records of a lane in the order that was asked for. It changes nothing.
type walk struct {
	lane     *lane
	order    *core.RouteOrder
	alone    bool
	session  int64
	suspects bool // a claimable suspect was left out
	next     func() *record
	pos      *record // peeked, not yet taken
}

func newWalk(l *lane, order *core.RouteOrder, req *core.ClaimRequest) *walk {
	w := &walk{lane: l, order: order, alone: req.Alone, session: req.Session}
	switch {
	case w.alone:
		w.next = w.along(&l.suspects)
	case order.Order == core.OrderPerKey:
		w.next = w.perKey()
	case order.Order == core.OrderHLC:
		w.next = w.along(l.byStamp())
	default:
		w.next = w.along(&l.ready)
	}
	return w
}

func (w *walk) peek() *record {
	if w.pos == nil {
		w.pos = w.next()
	}
	return w.pos
}

func (w *walk) skips(r *record) bool { return slices.Contains(w.order.SkipTopics, r.env.Topic) }

func (w *walk) blocked(k *keyQueue) bool {
	return w.order.BlockAfterAbandon && k.abandoned > 0 || slices.Contains(w.order.SkipKeys, k.name)
}

// along yields what may be taken of list. In an Alone walk the list holds the suspects.
func (w *walk) along(list *ordered[*record]) func() *record {
	i := 0
	return func() *record {
		for i < list.len() {
			r := list.at(i)
			i++
			if w.skips(r) {
				continue
			}
			if !w.alone {
				if r.suspectNow() {
					w.suspects = true
					continue
				}
				return r
			}
			if w.order.Order != core.OrderPerKey || r.env.Key == "" {
				return r
			}
			if k := w.lane.key(r.env.Key); k.open(w.session) && k.ready.at(0) == r && !w.blocked(k) {
				return r
			}
		}
		return nil
	}
}

// tail is a key of which the walk has yielded a prefix.
type tail struct {
	key *keyQueue
	pos int
	seq int64 // of the record at pos
}

// perKey merges the ready ones without key, the heads of open keys, and what follows the heads that were yielded, by
// sequence. What cannot be taken ends its key's prefix.
func (w *walk) perKey() func() *record {
	unkeyed, heads := 0, 0
	tails := ordered[tail]{cmp: func(a, b tail) int { return int(a.seq - b.seq) }}
	follow := func(k *keyQueue, pos int) {
		if pos < k.ready.len() {
			tails.insert(tail{key: k, pos: pos, seq: k.ready.at(pos).seq})
		}
	}
	return func() *record {
		for {
			const none = int64(1)<<62 - 1
			u, h, t := none, none, none
			if unkeyed < w.lane.unkeyed.len() {
				u = w.lane.unkeyed.at(unkeyed).seq
			}
			if heads < w.lane.heads.len() {
				h = w.lane.heads.at(heads).head
			}
			if tails.len() > 0 {
				t = tails.at(0).seq
			}
			switch first := min(u, h, t); first {
			case none:
				return nil
			case u:
				r := w.lane.unkeyed.at(unkeyed)
				unkeyed++
				if w.skips(r) {
					continue
				}
				if r.suspectNow() {
					w.suspects = true
					continue
				}
				return r
			case h:
				k := w.lane.heads.at(heads)
				heads++
				r := k.ready.at(0)
				if !k.open(w.session) || w.blocked(k) || w.skips(r) {
					continue
				}
				if r.suspectNow() {
					w.suspects = true
					continue
				}
				follow(k, 1)
				return r
			default:
				at := tails.at(0)
				tails.remove(at)
				r := at.key.ready.at(at.pos)
				if w.skips(r) || r.suspectNow() {
					continue
				}
				follow(at.key, at.pos+1)
				return r
			}
		}
	}
}
