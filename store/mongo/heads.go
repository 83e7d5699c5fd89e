package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var (
	_ admin.BlockedKeys = (*Store)(nil)
	_ admin.Explainer   = (*Store)(nil)
)

// maxTrials is how many retries are looked at for topics that no queue is bound for.
const maxTrials = 1000

// BlockedKeys lists keys whose head waits; see [admin.BlockedKeys]. Keys are in the order of their bytes. It goes by
// index from key to key with a record that waits or blocks, in one snapshot; over all keys if no queue is bound for
// some topic. Since counts from the end of an abandoned head, and else from the first due time of the head.
func (s *Store) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	err = s.transact(ctx, "blocked keys", func(ctx context.Context, w *work) error {
		keys = nil
		if err := w.clock(ctx); err != nil {
			return err
		}
		members, err := w.memberDocs(ctx)
		if err != nil {
			return err
		}
		unbound, err := w.unbound(ctx, req.Route)
		if err != nil {
			return err
		}
		for key := req.After; len(keys) <= req.Limit; {
			var ok bool
			if key, ok, err = w.nextKey(ctx, req.Route, key, len(unbound) > 0); err != nil || !ok {
				return err
			}
			k, err := w.blockedKey(ctx, req, key, members, unbound)
			if err != nil {
				return err
			}
			if k != nil {
				keys = append(keys, *k)
			}
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	if len(keys) > req.Limit {
		return keys[:req.Limit], true, nil
	}
	return keys, false, nil
}

// unbound returns, by topic that no queue is bound for, a record that tries. Those are due soonest.
func (w *work) unbound(ctx context.Context, route string) (map[string]*record, error) {
	out := map[string]*record{}
	filter := bson.M{"route": route, "phase": phaseRetry}
	opts := w.by("due").SetProjection(withoutBody).SetSort(bson.M{"due": 1}).SetLimit(maxTrials)
	err := w.each(ctx, filter, opts, func(r *record) bool {
		if out[r.Topic] == nil && admin.Unbound(r.Error) {
			out[r.Topic] = r
		}
		return true
	})
	return out, err
}

// nextKey returns the next key with a record that waits or blocks; with due also one with a record that is due.
func (w *work) nextKey(ctx context.Context, route, after string, due bool) (key string, ok bool, err error) {
	filters := map[string]bson.M{"waiting": {"phase": phaseRetry}, "blocks": {"blocks": true}}
	if due {
		filters["key"] = bson.M{"phase": phaseReady}
	}
	for index, filter := range filters {
		filter["route"], filter["key"] = route, bson.M{"$gt": after}
		found, err := w.all(ctx, filter, w.by(index).SetProjection(headOnly).SetSort(bson.M{"key": 1}).SetLimit(1))
		if err != nil {
			return "", false, err
		}
		if len(found) > 0 && (!ok || found[0].Key < key) {
			key, ok = found[0].Key, true
		}
	}
	return key, ok, nil
}

// blockedKey returns a key with its head if that blocks it, or nil.
func (w *work) blockedKey(
	ctx context.Context, req admin.BlockedKeysRequest, key string, members map[int64]*memberDoc, unbound map[string]*record,
) (*admin.BlockedKey, error) {
	head, cause, err := w.head(ctx, req.Route, key, req.BlockAfterAbandon)
	if err != nil {
		return nil, err
	}
	if head == nil && len(unbound) > 0 {
		held, err := w.firstOf(ctx, req.Route, key, bson.M{"hold": bson.M{"$gt": int64(0)}})
		if err != nil || held != nil {
			return nil, err
		}
		if head, err = w.firstOf(ctx, req.Route, key, bson.M{"phase": phaseReady}); err != nil || head == nil || unbound[head.Topic] == nil {
			return nil, err
		}
		cause = "topic"
	}
	if head == nil {
		return nil, nil //nolint:nilnil // no record blocks it
	}
	k := w.blocked(head, members, cause)
	behind := bson.M{"route": req.Route, "key": key, "phase": phaseReady, "seq": bson.M{"$ne": head.Seq}}
	n, err := w.s.outbox.CountDocuments(ctx, behind, options.Count().SetLimit(admin.MaxPageLimit))
	if k.Behind = int(n); err != nil || cause == "topic" && n == 0 {
		return nil, err
	}
	return &k, nil
}

// Hindrances returns the reasons why a record is not handed out, by index; see [admin.Explainer]. Locks of transactions
// cannot be seen.
func (s *Store) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	err = s.transact(ctx, "hindrances", func(ctx context.Context, w *work) error {
		in = admin.Hindrances{}
		if err := w.clock(ctx); err != nil {
			return err
		}
		members, err := w.memberDocs(ctx)
		if err != nil {
			return err
		}
		ahead, err := w.ahead(ctx, rec, blockAfterAbandon)
		if err != nil {
			return err
		}
		unbound, err := w.unbound(ctx, rec.Route)
		if err != nil {
			return err
		}
		if ahead != nil {
			st := w.stored(ahead, members)
			in.Ahead = &st
		}
		if trial := unbound[rec.Envelope.Topic]; trial != nil && trial.Seq != rec.Seq {
			st := w.stored(trial, members)
			in.Trial = &st
		}
		return nil
	})
	return in, err
}

// ahead returns the record that rec waits for in its key, or nil.
func (w *work) ahead(ctx context.Context, rec *admin.Stored, block bool) (*record, error) {
	key, other := rec.Envelope.Key, bson.M{"$ne": rec.Seq}
	if key == "" {
		return nil, nil //nolint:nilnil // it waits for no other
	}
	filters := []bson.M{{"phase": phaseRetry, "seq": other}, {"hold": bson.M{"$gt": int64(0)}, "seq": other}}
	if block {
		filters = append(filters, bson.M{"blocks": true, "seq": other})
	}
	var first *record
	for _, f := range filters {
		r, err := w.firstOf(ctx, rec.Route, key, f)
		if err != nil {
			return nil, err
		}
		if r != nil && (first == nil || r.Seq < first.Seq) {
			first = r
		}
	}
	if first != nil {
		return first, nil
	}
	return w.firstOf(ctx, rec.Route, key, bson.M{"phase": phaseReady, "seq": bson.M{"$lt": rec.Seq}})
}

// firstOf returns the first record of a key that filter selects, by sequence; nil if there is none.
func (w *work) firstOf(ctx context.Context, route, key string, filter bson.M) (*record, error) {
	filter["route"], filter["key"] = route, key
	found, err := w.all(ctx, filter, options.Find().SetProjection(withoutBody).SetSort(bson.M{"seq": 1}).SetLimit(1))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// heads returns the records that keep later messages of a key waiting: a retry, and an abandoned message if the route
// blocks then. A held retry is being sent.
func (w *work) heads(ctx context.Context, route, key string) (retry, gone *record, err error) {
	if retry, err = w.firstOf(ctx, route, key, bson.M{"phase": phaseRetry, "hold": int64(0)}); err != nil {
		return nil, nil, err
	}
	gone, err = w.firstOf(ctx, route, key, bson.M{"blocks": true})
	return retry, gone, err
}

// head returns the record that blocks a key and the cause, or nil.
func (w *work) head(ctx context.Context, route, key string, block bool) (head *record, cause string, err error) {
	retry, gone, err := w.heads(ctx, route, key)
	if block && gone != nil && (retry == nil || gone.Seq < retry.Seq) {
		return gone, "abandoned", err
	}
	return retry, "retry", err
}

func (w *work) blocked(head *record, members map[int64]*memberDoc, cause string) admin.BlockedKey {
	st := w.stored(head, members)
	k := admin.BlockedKey{Route: st.Route, Key: head.Key, Head: st, Cause: cause, Since: max(st.Age, 0)}
	if st.State == core.StateAbandoned {
		k.Since = max(w.now.Sub(head.Settled), 0)
	}
	return k
}
