package mongo

import (
	"context"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
)

var _ audit.Recorder = (*Store)(nil)

// auditDoc is a line of the audit record.
type auditDoc struct {
	Number int64     `bson:"_id"`
	At     time.Time `bson:"at"`
	Act    string    `bson:"act"`
	Phase  string    `bson:"phase"`
	User   string    `bson:"who"`
	Via    string    `bson:"via"`
	From   string    `bson:"origin"`
	Action string    `bson:"action"`
	Target string    `bson:"target"`
	Filter string    `bson:"filter"`
	IDs    []string  `bson:"ids"`
	Before string    `bson:"before"`
	After  string    `bson:"after"`
	Result string    `bson:"result"`
}

// AppendAudit adds a line to the audit record; see [audit.Recorder]. Its collection is only added to by a user that has
// no right to update it or to remove from it: docs/mongodb.md has these rights. MongoDB has none on fields, so that the
// time of a line is what the program wrote, by the server's clock. Lines name no role.
func (s *Store) AppendAudit(ctx context.Context, e audit.Entry) error {
	e, err := e.Check()
	if err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	w := work{s: s}
	if err := w.clock(ctx); err != nil {
		return classify("audit", err)
	}
	var last struct {
		Number int64 `bson:"number"`
	}
	err = s.meta.FindOneAndUpdate(ctx, bson.M{"_id": "audit"}, bson.M{"$inc": bson.M{"number": int64(1)}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&last)
	if err != nil {
		return classify("audit", err)
	}
	_, err = s.audit.InsertOne(ctx, auditDoc{
		last.Number, w.now, e.Act, e.Phase, e.User, e.Via, e.From, e.Action, e.Target, e.Filter, e.IDs, e.Before, e.After, e.Result,
	})
	return classify("audit", err)
}

// ListAudit lists the audit record; see [audit.Recorder].
func (s *Store) ListAudit(ctx context.Context, before int64, limit int) ([]audit.Entry, error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	cur, err := s.audit.Find(ctx, bson.M{"_id": bson.M{"$lt": before}},
		options.Find().SetSort(bson.M{"_id": -1}).SetLimit(int64(min(max(limit, 1), admin.MaxPageLimit))))
	if err != nil {
		return nil, classify("list the audit record", err)
	}
	var docs []auditDoc
	if err := cur.All(ctx, &docs); err != nil {
		return nil, classify("list the audit record", err)
	}
	out := make([]audit.Entry, 0, len(docs))
	for i := range docs {
		d := &docs[i]
		out = append(out, audit.Entry{
			Number: d.Number, At: d.At, Act: d.Act, Phase: d.Phase, User: d.User, Via: d.Via, From: d.From, Action: d.Action, Target: d.Target,
			Filter: d.Filter, IDs: d.IDs, Before: d.Before, After: d.After, Result: d.Result,
		})
	}
	return out, nil
}
