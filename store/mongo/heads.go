package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var _ admin.KeyKeeper = (*Store)(nil)

// BlockedKeys lists keys whose head waits; see [admin.KeyKeeper]. Keys are in the order of their bytes. It goes by
// index from key to key with a record that waits or blocks, in one snapshot. Since counts from the end of an abandoned
// head, and from the first due time of a head that waits for a retry.
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
		for key := req.After; len(keys) <= req.Limit; {
			next, ok, err := w.nextKey(ctx, req.Route, key)
			if err != nil || !ok {
				return err
			}
			key = next
			head, cause, err := w.head(ctx, req.Route, key, req.BlockAfterAbandon)
			if err != nil {
				return err
			}
			if head != nil {
				keys = append(keys, w.blocked(head, members, cause))
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

// nextKey returns the next key with a record that waits or blocks.
func (w *work) nextKey(ctx context.Context, route, after string) (key string, ok bool, err error) {
	for index, filter := range map[string]bson.M{"waiting": {"phase": phaseRetry}, "blocks": {"blocks": true}} {
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
// blocks then. A retry that somebody holds is being sent.
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
