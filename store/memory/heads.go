package memory

import (
	"context"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var (
	_ admin.BlockedKeys = (*Store)(nil)
	_ admin.Explainer   = (*Store)(nil)
)

// maxTrials is how many retries are looked at for topics that no queue is bound for.
const maxTrials = 1000

// obstructed returns why r keeps later messages of its key waiting: "retry", "abandoned" (if block), or "". A retry
// stops doing so when a member holds it.
func (r *record) obstructed(block bool) string {
	switch {
	case r.env.Key == "", r.holder != 0, r.cancelled():
	case r.blocks() && block:
		return "abandoned"
	case r.retry():
		return "retry"
	}
	return ""
}

// head returns the first record of the key that keeps later ones waiting, or nil.
func (k *keyed) head(block bool) *record {
	for r := range k.odd.all() {
		if r.obstructed(block) != "" {
			return r
		}
	}
	return nil
}

// next returns the first record of the key that is due, if no other record keeps it waiting, or nil.
func (k *keyed) next() *record {
	for r := range k.odd.all() {
		if r.holder != 0 || r.retry() {
			return nil
		}
	}
	return k.ready.first()
}

// BlockedKeys lists keys whose head waits. Since counts from the end of an abandoned head, and from the first due time
// of a head that waits for a retry.
func (s *Store) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	if err := ctx.Err(); err != nil {
		return nil, false, outage("blocked keys", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.routes[req.Route]
	if rt == nil {
		return nil, false, nil
	}
	now, unbound := s.now(), rt.unbound()
	for key, k := range rt.keys {
		r, cause := k.blocked(req.BlockAfterAbandon, unbound)
		if r == nil || key <= req.After {
			continue
		}
		b := admin.BlockedKey{Route: req.Route, Key: key, Head: s.show(r, now), Cause: cause, Behind: k.behind(r)}
		if b.Since = max(b.Head.Age, 0); r.state == core.StateAbandoned {
			b.Since = max(now.Sub(r.settledAt), 0)
		}
		keys = append(keys, b)
	}
	slices.SortFunc(keys, func(a, b admin.BlockedKey) int { return strings.Compare(a.Key, b.Key) })
	if len(keys) > req.Limit {
		keys, more = keys[:req.Limit], true
	}
	return keys, more, nil
}

// unbound returns, by topic that no queue is bound for, a record that tries.
func (rt *route) unbound() map[string]*record {
	out := map[string]*record{}
	n := 0
	for r := range rt.retries.all() {
		if n++; n > maxTrials {
			break
		}
		if admin.Unbound(r.lastErr) && out[r.env.Topic] == nil {
			out[r.env.Topic] = r
		}
	}
	return out
}

// blocked returns the record that keeps others of the key waiting, and why; nil if none does.
func (k *keyed) blocked(block bool, unbound map[string]*record) (r *record, cause string) {
	if r = k.head(block); r != nil {
		return r, r.obstructed(block)
	}
	if r = k.next(); r != nil && unbound[r.env.Topic] != nil && k.behind(r) > 0 {
		return r, "topic"
	}
	return nil, ""
}

// behind counts the due records of the key but its head.
func (k *keyed) behind(head *record) (n int) {
	for r := range k.ready.all() {
		if r != head {
			n++
		}
		if n == admin.MaxPageLimit {
			break
		}
	}
	return n
}

// Hindrances returns the reasons why a record is not handed out; see [admin.Explainer]. It names no process of a lock,
// since all transactions are of this one.
func (s *Store) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	if err := ctx.Err(); err != nil {
		return in, outage("hindrances", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.stored(rec.Route, rec.Envelope.ID)
	if r == nil {
		return in, nil
	}
	now := s.now()
	if ahead := r.ahead(blockAfterAbandon); ahead != nil {
		shown := s.show(ahead, now)
		in.Ahead = &shown
	}
	if trial := r.route.unbound()[r.env.Topic]; trial != nil && trial != r {
		shown := s.show(trial, now)
		in.Trial = &shown
	}
	in.Locked = r.lock != nil
	return in, nil
}

// ahead returns the record that r waits for in its key, or nil.
func (r *record) ahead(block bool) *record {
	k := r.route.keys[r.env.Key]
	if k == nil {
		return nil
	}
	for o := range k.odd.all() {
		if o != r && (o.holder != 0 || o.obstructed(block) != "") {
			return o
		}
	}
	if first := k.ready.first(); first != nil && first.seq < r.seq {
		return first
	}
	return nil
}

const decideOp = "waybill/memory: decide head"

// DecideHead skips, sets aside or requeues the head of a blocked key: a record that waits for a retry, or was abandoned
// and blocks. The owner of the key is told, and reads the key again. A record that a member holds, or that a
// transaction has locked, is in flight.
//
// The first due record of the key can be skipped and set aside, too. Its owner does that as soon as the record is not
// out. DecideHead waits for it, at most ten seconds; then the decision stands, and the error says so. If the key's
// partition has no owner, no relay can have the record out, and DecideHead does it alone.
func (s *Store) DecideHead(ctx context.Context, route, key, id string, action admin.HeadAction) error {
	if err := admin.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return outage("decide head", err)
	}
	told, err := s.Decide(route, key, id, action)
	if err != nil || told == nil {
		return err
	}
	return admin.AwaitHead(ctx, decideOp, s, told)
}

// Decide is DecideHead for a model, which cannot wait: it returns the notice for the owner, or nil if the
// decision is carried out.
func (s *Store) Decide(route, key, id string, action admin.HeadAction) (*core.Notice, error) {
	const op = decideOp
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.stored(route, id)
	switch {
	case r == nil || r.env.Key != key:
		return nil, admin.NotHead(op, route, key, id)
	case r.holder != 0 || r.lock != nil:
		return nil, admin.HeadInFlight(op, route, key, id)
	case !r.isHead(), r.ready() && action == admin.HeadRequeue:
		return nil, admin.NotHead(op, route, key, id)
	case r.ready() && r.partition().Owner != 0:
		c := s.about(r)
		c.Kind, c.Reason = core.NoticeDecide, headReason(action)
		s.tell(c)
		return c, nil
	}
	switch action {
	case admin.HeadSkip, admin.HeadSetAside:
		s.abandon(r, headReason(action), now)
	case admin.HeadRequeue:
		if r.env.Expired(now) {
			return nil, admin.HeadExpired(id, r.env.Expires)
		}
		if s.outlived(r) {
			return nil, admin.HeadDuplicate(id)
		}
		s.requeue(r, now)
	}
	s.tellOwner(r)
	return nil, nil //nolint:nilnil // nobody needs to be waited for
}

func headReason(action admin.HeadAction) waybill.Reason {
	if action == admin.HeadSetAside {
		return waybill.ReasonSetAside
	}
	return waybill.ReasonSkipped
}

// isHead reports whether an operator can decide about r. No session holds r, and no transaction has locked it.
func (r *record) isHead() bool {
	k := r.route.keys[r.env.Key]
	if k == nil {
		return false
	}
	return k.head(true) == r || k.head(false) == r || k.next() == r
}
