package owned

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.KeyKeeper = (*Store)(nil)

// obstructed returns why r keeps later messages of its key waiting: "retry", "abandoned" (if block), or "". A retry
// does so until a member holds it.
func (r *record) obstructed(block bool) string {
	switch {
	case r.env.Key == "", r.holder != 0, r.withdrawn():
	case r.blocks() && block:
		return "abandoned"
	case r.retry():
		return "retry"
	}
	return ""
}

// head returns the first record of the key that keeps later ones waiting, or nil.
func (k *keyed) head(block bool) *record { //nolint:revive // block is the route's
	for r := range k.odd.all() {
		if r.obstructed(block) != "" {
			return r
		}
	}
	return nil
}

// next returns the first record of the key that is due, if nothing keeps it waiting, or nil.
func (k *keyed) next() *record {
	for r := range k.odd.all() {
		if r.holder != 0 || r.retry() {
			return nil
		}
	}
	return k.ready.first()
}

// BlockedKeys lists keys whose head waits. Since counts from the end of an abandoned head; of one that waits for a
// retry, from when it was first due.
func (s *Store) BlockedKeys(ctx context.Context, route string, blockAfterAbandon bool, after string, limit int) (keys []core.BlockedKey, more bool, err error) {
	limit, err = core.CheckBlockedKeys(route, limit)
	if err != nil {
		return nil, false, err
	}
	if err := ctx.Err(); err != nil {
		return nil, false, outage("blocked keys", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.routes[route]
	if rt == nil {
		return nil, false, nil
	}
	now := s.now()
	for key, k := range rt.keys {
		r := k.head(blockAfterAbandon)
		if r == nil || key <= after {
			continue
		}
		b := core.BlockedKey{Route: route, Key: key, Head: s.show(r, now), Cause: r.obstructed(blockAfterAbandon)}
		if b.Since = max(b.Head.Age, 0); r.state == core.StateAbandoned {
			b.Since = max(now.Sub(r.settledAt), 0)
		}
		keys = append(keys, b)
	}
	slices.SortFunc(keys, func(a, b core.BlockedKey) int { return strings.Compare(a.Key, b.Key) })
	if len(keys) > limit {
		keys, more = keys[:limit], true
	}
	return keys, more, nil
}

// DecideHead skips, parks or requeues the head of a blocked key: what waits for a retry, or was abandoned and blocks.
// The owner of the key is told, and reads the key anew. What a member holds, and what a transaction has locked, is in
// flight.
//
// If nobody owns the key's unit, the first due record of the key can be decided about too, unless somebody holds it: no
// relay can have it out. If there is an owner, that record is no head, since its owner may be sending it.
func (s *Store) DecideHead(ctx context.Context, route, key, id string, action core.HeadAction) error {
	if err := core.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	const op = "waybill/memory: decide head"
	if err := ctx.Err(); err != nil {
		return outage("decide head", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.stored(route, id)
	switch {
	case r == nil || r.env.Key != key:
		return core.NotHead(op, route, key, id)
	case r.holder != 0 || r.lock != nil:
		return core.HeadInFlight(op, route, key, id)
	case !r.isHead():
		return core.NotHead(op, route, key, id)
	}
	switch action {
	case core.HeadSkip:
		s.giveUp(r, core.ReasonSkipped, now)
	case core.HeadPark:
		s.giveUp(r, core.ReasonParked, now)
	case core.HeadRequeue:
		if r.env.Expired(now) {
			return core.HeadExpired(id, r.env.Expires)
		}
		if s.outlived(r) {
			return core.HeadDuplicate(id)
		}
		s.requeue(r, now)
	}
	s.tellOwner(r)
	return nil
}

// isHead reports whether an operator can decide about r, which nobody holds and nobody has locked.
func (r *record) isHead() bool {
	k := r.route.keys[r.env.Key]
	if k == nil {
		return false
	}
	return k.head(true) == r || k.head(false) == r || r.untended() && k.next() == r
}

// giveUp abandons r, or gives another reason for it, so that its key goes on. Its retention counts from now.
func (s *Store) giveUp(r *record, reason core.Reason, now time.Time) {
	s.unplace(r)
	s.retire(r, core.StateAbandoned, reason, now)
}
