package rules

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// Obstructs returns why r keeps later records of its key waiting, as self sees it, or why self must not hand it out; 0
// if neither is so. blocking says whether abandoned records hold their keys on the route.
func (r *Row) Obstructs(self core.Session, blocking bool) core.BlockReason {
	switch {
	case r.Live() && r.Holder != 0 && r.Holder != self:
		return core.BlockedByHold
	case r.Retry() && r.Keyed:
		return core.BlockedByRetry
	case r.Blocks && r.Keyed && blocking:
		return core.BlockedByAbandoned
	}
	return 0
}

// Sweeps reports whether the cleaning ends r, whose expiry has passed, and whether it tells the owner of its key. It
// leaves a held record to its holder, and one that can be out to its owner. No member remembers a timer, nor a record
// in line in a partition without an owner: only the end of a retry must be told.
func Sweeps(r *Row, u Partition) (ends, tells bool) {
	ends = r.Live() && r.Holder == 0 && (r.Waits || u.Owner == 0)
	return ends, ends && r.Keyed && r.Retry()
}

// Decides reports whether an operator's decision ends r at once, and whether the owner of its key is told then. If it
// does not end r, the owner of its partition does as soon as r is not out. The decision keeps a partition without an
// owner as it is, so that no member can remember r.
func Decides(r *Row, u Partition) (ends, tells bool) {
	ends = r.Live() && r.Holder == 0 && (r.Waits || r.Cancellable || u.Owner == 0)
	return ends, ends && u.Owner != 0 && Tells(r)
}

// Decided returns the result of a decision about r with a reason, as [Decides] says, and whether the owner of its key
// is told now. r is nil if the record that d names is not there. told says that the notice with the number of d is
// there. A live record whose decision is carried out ends now.
func Decided(r *Row, u Partition, d *admin.Decision, told bool, reason waybill.Reason) (result admin.DecisionResult, tells bool) {
	if r == nil || r.Live() && d.Number != 0 && !told || !r.Live() && r.Reason != reason {
		return admin.DecisionSuperseded, false
	}
	ends, tells := Decides(r, u)
	if r.Live() && !ends {
		return admin.DecisionPending, false
	}
	return admin.DecisionCarriedOut, tells
}

// KeyHeads are the numbers of the first records of a key, of each kind that decides which one is its head; 0 = none.
type KeyHeads struct {
	Retry     int64 // waits for its next attempt, and no member holds it
	Abandoned int64 // was abandoned, and holds its key on routes that block
	Held      int64 // a member holds it
	Ready     int64 // is in line
}

// Add adds r, a record of the key.
func (k *KeyHeads) Add(r *Row) {
	add := func(to *int64, is bool) {
		if is {
			*to = first(*to, r.Seq)
		}
	}
	add(&k.Retry, r.Retry() && r.Holder == 0)
	add(&k.Abandoned, r.Blocks)
	add(&k.Held, r.Live() && r.Holder != 0)
	add(&k.Ready, r.Ready())
}

// first returns the least of numbers, of which 0 is none.
func first(numbers ...int64) (least int64) {
	for _, n := range numbers {
		if n != 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// Head returns the record that keeps later ones of its key waiting; 0 if none does. blocking says whether abandoned
// records hold their keys on the route. A retry that a member holds is being sent.
func (k *KeyHeads) Head(blocking bool) int64 {
	if blocking {
		return first(k.Retry, k.Abandoned)
	}
	return k.Retry
}

// Next returns the first record of the key that is in line, if no other keeps it waiting; else 0. An abandoned one does
// not, since the route can go on after it.
func (k *KeyHeads) Next() int64 {
	if k.Retry != 0 || k.Held != 0 {
		return 0
	}
	return k.Ready
}

// Ahead returns the record of the key that record seq waits for; 0 if there is none. k is without seq.
func (k *KeyHeads) Ahead(seq int64, blocking bool) int64 {
	if ahead := first(k.Held, k.Head(blocking)); ahead != 0 {
		return ahead
	}
	if k.Ready < seq {
		return k.Ready
	}
	return 0
}

// HeadChange is what a decision about the head of a key does with a record.
type HeadChange uint8

// The changes.
const (
	HeadNone     HeadChange = iota // the record is not the head
	HeadInFlight                   // a member holds the record, and nothing changes
	HeadTold                       // the owner of its partition is told to end it
	HeadEnded                      // it ends
	HeadRequeued                   // it is ready again, unless it has expired or its dedupe key is another's
)

// Decide returns the effect of an operator's decision on r, a record of the key. Both the head of a route that blocks
// after an abandoned record and that of one that does not can be decided about, and the first one in line, which its
// owner can have out. That one cannot be put back. The owner of the key is told of each change.
func (k *KeyHeads) Decide(r *Row, u Partition, action admin.HeadAction) HeadChange {
	head, next := r.Seq == k.Head(false) || r.Seq == k.Head(true), r.Seq == k.Next()
	switch {
	case r.Holder != 0:
		return HeadInFlight
	case head && action == admin.HeadRequeue:
		return HeadRequeued
	case !head && (!next || action == admin.HeadRequeue):
		return HeadNone
	case next && u.Owner != 0:
		return HeadTold
	}
	return HeadEnded
}

// HeadReason returns the reason of a record that a decision ends.
func HeadReason(action admin.HeadAction) waybill.Reason {
	switch action {
	case admin.HeadSkip:
		return waybill.ReasonSkipped
	case admin.HeadSetAside:
		return waybill.ReasonSetAside
	case admin.HeadRequeue:
	}
	return waybill.ReasonNone
}

// maxTrials is how many retries are looked at for topics that no queue is bound for.
const maxTrials = 1000

// HindranceTx is what a store reads for [Hindrances], within the snapshot of the call.
type HindranceTx interface {
	// Retries calls fn with retries of a route: the first of them that are due, up to limit.
	Retries(ctx context.Context, route string, limit int, fn func(seq int64, topic, lastError string)) error
	// Heads returns the heads of a key without record except. Held and Ready are needed only with ready.
	Heads(ctx context.Context, route, key string, except int64, ready bool) (KeyHeads, error)
	// Stored returns a record that Heads or Retries has named, without its body; nil if it cannot be found.
	Stored(ctx context.Context, route string, seq int64) (*admin.Stored, error)
}

// HeadTx is what a store reads for [BlockedKeys], within the snapshot of the call.
type HeadTx interface {
	HindranceTx
	// NextKey returns the first key behind after that has a record that waits for a retry, or blocks, or with ready
	// is in line; "" if there is none. It can return a key whose records do not keep others waiting.
	NextKey(ctx context.Context, route, after string, ready bool) (string, error)
	// Behind counts the records of a key in line but seq, up to admin.MaxPageLimit.
	Behind(ctx context.Context, route, key string, seq int64) (int, error)
	// Now returns the time of the store's clock.
	Now() time.Time
}

// unbound returns, by topic that no queue is bound for, a record that tries.
func unbound(ctx context.Context, tx HindranceTx, route string) (map[string]int64, error) {
	trials := map[string]int64{}
	err := tx.Retries(ctx, route, maxTrials, func(seq int64, topic, lastError string) {
		if admin.Unbound(lastError) && trials[topic] == 0 {
			trials[topic] = seq
		}
	})
	return trials, err
}

// BlockedKeys carries out a call of admin.BlockedKeys, from key to key. It goes over all keys in line if no queue is
// bound for some topic. Since counts from the end of an abandoned head, and from the first due time of any other.
func BlockedKeys(ctx context.Context, tx HeadTx, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	trials, err := unbound(ctx, tx, req.Route)
	if err != nil {
		return nil, false, err
	}
	for {
		if req.After, err = tx.NextKey(ctx, req.Route, req.After, len(trials) > 0); err != nil || req.After == "" {
			return keys, false, err
		}
		k, err := blocked(ctx, tx, &req, trials)
		if err != nil {
			return nil, false, err
		}
		if k == nil {
			continue
		}
		if len(keys) == req.Limit {
			return keys, true, nil
		}
		keys = append(keys, *k)
	}
}

// blocked returns the key req.After with its head if that blocks it, or nil.
func blocked(ctx context.Context, tx HeadTx, req *admin.BlockedKeysRequest, trials map[string]int64) (*admin.BlockedKey, error) {
	k := &admin.BlockedKey{Route: req.Route, Key: req.After}
	heads, err := tx.Heads(ctx, k.Route, k.Key, 0, len(trials) > 0)
	if err != nil {
		return nil, err
	}
	head := heads.Head(req.BlockAfterAbandon)
	topic := head == 0
	if topic {
		head = heads.Next()
	}
	if head == 0 || topic && len(trials) == 0 {
		return nil, nil //nolint:nilnil // no record blocks it
	}
	st, err := tx.Stored(ctx, k.Route, head)
	if err != nil || st == nil || topic && trials[st.Envelope.Topic] == 0 {
		return nil, err
	}
	if k.Behind, err = tx.Behind(ctx, k.Route, k.Key, head); err != nil || topic && k.Behind == 0 {
		return nil, err
	}
	switch k.Head, k.Since = *st, st.Age; {
	case topic:
		k.Cause = "topic"
	case st.State == core.StateAbandoned:
		k.Cause, k.Since = "abandoned", tx.Now().Sub(st.SettledAt)
	default:
		k.Cause = "retry"
	}
	k.Since = max(k.Since, 0)
	return k, nil
}

// Hindrances returns the hindrances of a record but its locks; see admin.Explainer.
func Hindrances(ctx context.Context, tx HindranceTx, rec *admin.Stored, blocking bool) (in admin.Hindrances, err error) {
	if key := rec.Envelope.Key; key != "" {
		heads, err := tx.Heads(ctx, rec.Route, key, rec.Seq, true)
		if err != nil {
			return in, err
		}
		if ahead := heads.Ahead(rec.Seq, blocking); ahead != 0 {
			if in.Ahead, err = tx.Stored(ctx, rec.Route, ahead); err != nil {
				return in, err
			}
		}
	}
	trials, err := unbound(ctx, tx, rec.Route)
	if trial := trials[rec.Envelope.Topic]; err == nil && trial != 0 && trial != rec.Seq {
		in.Trial, err = tx.Stored(ctx, rec.Route, trial)
	}
	return in, err
}
