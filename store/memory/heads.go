package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var (
	_ admin.BlockedKeys = (*Store)(nil)
	_ admin.Explainer   = (*Store)(nil)
)

// BlockedKeys lists keys whose head waits; see [admin.BlockedKeys].
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
	return rules.BlockedKeys(ctx, &heads{s, rt, s.now(), slices.Sorted(maps.Keys(rt.keys))}, req)
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
	in, err = rules.Hindrances(ctx, &heads{s, r.route, s.now(), nil}, rec, blockAfterAbandon)
	in.Locked = r.lock != nil
	return in, err
}

// heads is a route for the rules of heads, while the store is locked.
type heads struct {
	s     *Store
	route *route
	now   time.Time
	keys  []string // sorted
}

var _ rules.HeadTx = (*heads)(nil)

func (h *heads) Now() time.Time { return h.now }

func (h *heads) Retries(_ context.Context, _ string, limit int, fn func(seq int64, topic, lastError string)) error {
	for r := range h.route.retries.all() {
		if limit--; limit < 0 {
			break
		}
		fn(r.seq, r.env.Topic, r.lastErr)
	}
	return nil
}

func (h *heads) NextKey(_ context.Context, _, after string, _ bool) (string, error) {
	i, found := slices.BinarySearch(h.keys, after)
	if found {
		i++
	}
	if i == len(h.keys) {
		return "", nil
	}
	return h.keys[i], nil
}

func (h *heads) Heads(_ context.Context, _, key string, except int64, _ bool) (rules.KeyHeads, error) {
	return h.route.keys[key].heads(except), nil
}

func (h *heads) Stored(_ context.Context, _ string, seq int64) (*admin.Stored, error) {
	st := h.s.show(h.route.bySeq[seq], h.now)
	return &st, nil
}

func (h *heads) Behind(_ context.Context, _, key string, seq int64) (n int, err error) {
	for r := range h.route.keys[key].ready.all() {
		if r.seq != seq {
			n++
		}
		if n == admin.MaxPageLimit {
			break
		}
	}
	return n, nil
}

// heads returns the heads of a key, which can have no records, without record except.
func (k *keyed) heads(except int64) (heads rules.KeyHeads) {
	if k == nil {
		return heads
	}
	add := func(r *record) {
		if r != nil && r.seq != except {
			f := r.facts()
			heads.Add(&f)
		}
	}
	for r := range k.unready.all() {
		add(r)
	}
	add(k.ready.first())
	return heads
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
	if r == nil || r.env.Key != key {
		return nil, admin.NotHead(op, route, key, id)
	}
	heads, f := r.route.keys[key].heads(0), r.facts()
	change := heads.Decide(&f, r.partition(), action)
	if r.lock != nil {
		change = rules.HeadInFlight
	}
	switch change {
	case rules.HeadNone:
		return nil, admin.NotHead(op, route, key, id)
	case rules.HeadInFlight:
		return nil, admin.HeadInFlight(op, route, key, id)
	case rules.HeadTold:
		c := s.about(r)
		c.Kind, c.Reason = core.NoticeDecide, rules.HeadReason(action)
		s.tell(c)
		return c, nil
	case rules.HeadEnded:
		s.abandon(r, rules.HeadReason(action), now)
	case rules.HeadRequeued:
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
