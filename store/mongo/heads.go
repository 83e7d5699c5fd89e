package mongo

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/rules"
)

var (
	_ admin.BlockedKeys = (*Store)(nil)
	_ admin.Explainer   = (*Store)(nil)
)

// BlockedKeys lists keys whose head waits; see [admin.BlockedKeys]. Keys are in the order of their bytes. It goes by
// index from key to key with a record that waits or blocks, in one snapshot; over all keys if no queue is bound for
// some topic.
func (s *Store) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool, err error) {
	req, err = admin.CheckBlockedKeys(req)
	if err != nil {
		return nil, false, err
	}
	err = s.transact(ctx, "blocked keys", func(ctx context.Context, w *work) error {
		h, err := w.heads(ctx)
		if err != nil {
			return err
		}
		keys, more, err = rules.BlockedKeys(ctx, h, req)
		return err
	})
	return keys, more, err
}

// Hindrances returns the reasons why a record is not handed out, by index; see [admin.Explainer]. Locks of transactions
// cannot be seen.
func (s *Store) Hindrances(ctx context.Context, rec *admin.Stored, blockAfterAbandon bool) (in admin.Hindrances, err error) {
	err = s.transact(ctx, "hindrances", func(ctx context.Context, w *work) error {
		h, err := w.heads(ctx)
		if err != nil {
			return err
		}
		in, err = rules.Hindrances(ctx, h, rec, blockAfterAbandon)
		return err
	})
	return in, err
}

// heads is a work for the rules of heads.
type heads struct {
	*work
	members map[int64]*memberDoc
	found   map[int64]*record // those that Heads and Retries have named
}

// heads reads the clock and the members.
func (w *work) heads(ctx context.Context) (*heads, error) {
	if err := w.clock(ctx); err != nil {
		return nil, err
	}
	members, err := w.memberDocs(ctx)
	return &heads{w, members, map[int64]*record{}}, err
}

func (h *heads) Now() time.Time { return h.now }

func (h *heads) Retries(ctx context.Context, route string, limit int, fn func(seq int64, topic, lastError string)) error {
	filter := bson.M{"route": route, "phase": phaseRetry}
	opts := h.by("due").SetProjection(withoutBody).SetSort(bson.M{"due": 1}).SetLimit(int64(limit))
	return h.each(ctx, filter, opts, func(r *record) bool {
		h.found[r.Seq] = r
		fn(r.Seq, r.Topic, r.Error)
		return true
	})
}

func (h *heads) NextKey(ctx context.Context, route, after string, ready bool) (key string, err error) {
	filters := map[string]bson.M{"waiting": {"phase": phaseRetry}, "blocks": {"blocks": true}}
	if ready {
		filters["key"] = bson.M{"phase": phaseReady}
	}
	for index, filter := range filters {
		filter["route"], filter["key"] = route, bson.M{"$gt": after}
		found, err := h.all(ctx, filter, h.by(index).SetProjection(headOnly).SetSort(bson.M{"key": 1}).SetLimit(1))
		if err != nil {
			return "", err
		}
		if len(found) > 0 && (key == "" || found[0].Key < key) {
			key = found[0].Key
		}
	}
	return key, nil
}

func (h *heads) Heads(ctx context.Context, route, key string, except int64, ready bool) (k rules.KeyHeads, err error) {
	held := bson.M{"$gt": int64(0)}
	kinds := []struct {
		to     *int64
		filter bson.M
	}{
		{&k.Retry, bson.M{"phase": phaseRetry, "hold": int64(0)}},
		{&k.Abandoned, bson.M{"blocks": true}},
		{&k.Held, bson.M{"hold": held}},
		{&k.Ready, bson.M{"phase": phaseReady}},
	}
	if !ready {
		kinds = kinds[:2]
	}
	for _, kind := range kinds {
		kind.filter["route"], kind.filter["key"], kind.filter["seq"] = route, key, bson.M{"$ne": except}
		first, err := h.all(ctx, kind.filter, options.Find().SetProjection(withoutBody).SetSort(bson.M{"seq": 1}).SetLimit(1))
		if err != nil {
			return k, err
		}
		if len(first) > 0 {
			*kind.to, h.found[first[0].Seq] = first[0].Seq, first[0]
		}
	}
	return k, nil
}

func (h *heads) Stored(_ context.Context, _ string, seq int64) (*admin.Stored, error) {
	st := h.stored(h.found[seq], h.members)
	return &st, nil
}

func (h *heads) Behind(ctx context.Context, route, key string, seq int64) (int, error) {
	behind := bson.M{"route": route, "key": key, "phase": phaseReady, "seq": bson.M{"$ne": seq}}
	n, err := h.s.outbox.CountDocuments(ctx, behind, options.Count().SetLimit(admin.MaxPageLimit))
	return int(n), err
}
