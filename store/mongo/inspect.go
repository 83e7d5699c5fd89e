package mongo

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var _ admin.Inspector = (*Store)(nil)

// lookup returns a record without its body, or nil.
func (w *work) lookup(ctx context.Context, filter, projection bson.M) (*record, error) {
	found, err := w.all(ctx, filter, options.Find().SetProjection(projection).SetLimit(1))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// stored returns r as operators see it. members are those of the outbox.
func (w *work) stored(r *record, members map[int64]*memberDoc) admin.Stored {
	out := admin.Stored{
		Route: r.ID.Route, Seq: r.Seq, State: r.Phase.state(), Reason: waybill.Reason(r.Reason), Attempts: r.Attempts, Crashes: r.Crashes,
		DedupeKey: r.DedupeKey, Age: w.now.Sub(r.Since), LastError: r.Error, LastErrorAt: utc(r.ErrorAt), SettledAt: utc(r.Settled),
	}
	out.Envelope, out.Err = w.s.envelope(r)
	out.Envelope.Body = r.Body
	switch {
	case r.Hold != 0:
		out.State = core.StateProcessing
		if m := members[r.Hold]; m != nil {
			out.Owner = m.Name
			out.LeaseIn = max(m.Renewed.Add(time.Duration(m.Lease)*time.Microsecond).Sub(w.now), 0)
		}
	case r.waits():
		out.DueIn = max(r.Due.Sub(w.now), 0)
	}
	return out
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

// Inspect returns the record of a message on a route. A record that somebody holds is processing.
func (s *Store) Inspect(ctx context.Context, route, id string) (out admin.Stored, err error) {
	found := false
	err = s.transact(ctx, "inspect", func(ctx context.Context, w *work) error {
		if err := w.clock(ctx); err != nil {
			return err
		}
		r, err := w.lookup(ctx, bson.M{"_id": recordID{route, id}}, nil)
		if err != nil || r == nil {
			return err
		}
		members, err := w.memberDocs(ctx)
		out, found = w.stored(r, members), true
		return err
	})
	switch {
	case err != nil:
		return admin.Stored{}, err
	case !found:
		return admin.Stored{}, admin.NoRecord("waybill/mongo: inspect", route, id)
	}
	return out, nil
}

// List returns a page of the records that f selects, without bodies. It finds ids by their index. It looks for all
// others by sequence, at most page.Budget documents.
func (s *Store) List(ctx context.Context, f admin.Filter, page admin.PageRequest) (admin.Listing, error) {
	page, err := admin.CheckList(&f, page)
	if err != nil {
		return admin.Listing{}, err
	}
	out, _, err := s.list(ctx, "list", &f, page, func(core.State, waybill.Reason) bool { return true })
	return out, err
}

// list returns a page of the records that f and takes select, and their documents.
func (s *Store) list(
	ctx context.Context, op string, f *admin.Filter, page admin.PageRequest, takes func(core.State, waybill.Reason) bool,
) (out admin.Listing, docs []*record, err error) {
	err = s.transact(ctx, op, func(ctx context.Context, w *work) error {
		out, docs = admin.Listing{}, nil
		if err := w.clock(ctx); err != nil {
			return err
		}
		members, err := w.memberDocs(ctx)
		if err != nil {
			return err
		}
		var last int64
		looked := 0
		filter, opts, err := w.listFilter(ctx, f, page.After)
		if err != nil {
			return err
		}
		opts = opts.SetProjection(withoutBody).SetSort(bson.M{"seq": 1}).SetLimit(int64(page.Budget))
		err = w.each(ctx, filter, opts, func(r *record) bool {
			looked++
			last = r.Seq
			if st := w.stored(r, members); f.Matches(&st) && takes(st.State, st.Reason) {
				out.Records, docs = append(out.Records, st), append(docs, r)
			}
			return len(out.Records) < page.Limit
		})
		if len(out.Records) == page.Limit || looked == page.Budget {
			out.Next = last
		}
		return err
	})
	if err != nil {
		return admin.Listing{}, nil, err
	}
	slices.SortFunc(out.Records, func(a, b admin.Stored) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, docs, nil
}

// listFilter selects the documents to look at, by their ids or by sequence.
func (w *work) listFilter(ctx context.Context, f *admin.Filter, after int64) (filter bson.M, opts *options.FindOptionsBuilder, err error) {
	filter = bson.M{"seq": bson.M{"$gt": after}}
	if len(f.IDs) == 0 {
		if f.OnlyAbandoned() {
			filter["phase"] = phaseAbandoned
			return filter, w.by("gone"), nil
		}
		return filter, w.by("seq"), nil
	}
	routes := f.Routes
	if len(routes) == 0 {
		if routes, err = w.s.routeNames(outside(ctx)); err != nil {
			return nil, nil, err
		}
	}
	ids := bson.A{}
	for _, route := range routes {
		for _, id := range f.IDs {
			ids = append(ids, recordID{route, id})
		}
	}
	filter["_id"] = bson.M{"$in": ids}
	return filter, options.Find(), nil
}
