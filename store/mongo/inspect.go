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
		Route: r.ID.Route, Seq: r.Seq, State: r.facts().Shown(), Reason: waybill.Reason(r.Reason), Attempts: r.Attempts, Crashes: r.Crashes,
		Age: w.now.Sub(r.Since), LastError: r.Error, LastErrorAt: utc(r.ErrorAt), SettledAt: utc(r.Settled),
	}
	out.SetDedupeKey(r.DedupeKey)
	out.Envelope, out.Err = w.s.envelope(r)
	out.Envelope.Body = r.Body
	switch {
	case r.Hold != 0:
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

// Inspect returns the record of a message on a route. A held record is processing.
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
		if err := w.clock(ctx); err != nil {
			return err
		}
		members, err := w.memberDocs(ctx)
		if err != nil {
			return err
		}
		l := lister{work: w, f: f, page: page, takes: takes, members: members}
		if len(f.IDs) > 0 {
			err = l.ids(ctx)
		} else {
			err = l.walk(ctx)
		}
		out, docs = l.out, l.docs
		return err
	})
	if err != nil {
		return admin.Listing{}, nil, err
	}
	return out, docs, nil
}

// lister is one page of a list in its transaction.
type lister struct {
	*work
	f       *admin.Filter
	page    admin.PageRequest
	takes   func(core.State, waybill.Reason) bool
	members map[int64]*memberDoc

	out  admin.Listing
	docs []*record
}

// add adds r if it is selected.
func (l *lister) add(r *record) {
	if st := l.stored(r, l.members); l.f.Matches(&st) && l.takes(st.State, st.Reason) {
		l.out.Records, l.docs = append(l.out.Records, st), append(l.docs, r)
	}
}

// walk goes from record to record.
func (l *lister) walk(ctx context.Context) error {
	filter, opts := bson.M{"seq": bson.M{"$gt": l.page.After}}, l.by("seq")
	if l.f.OnlyAbandoned() {
		filter["phase"], opts = phaseAbandoned, l.by("gone")
	}
	looked := 0
	return l.each(ctx, filter, opts.SetProjection(withoutBody).SetSort(bson.M{"seq": 1}).SetLimit(int64(l.page.Budget)), func(r *record) bool {
		looked++
		if l.add(r); len(l.out.Records) == l.page.Limit || looked == l.page.Budget {
			l.out.Next = r.Seq
		}
		return l.out.Next == 0
	})
}

// maxIn bounds the values of one condition: a command has 16 MiB at most.
const maxIn = 5000

// ids looks for the ids of the filter on its routes, or on every route.
func (l *lister) ids(ctx context.Context) (err error) {
	routes := l.f.Routes
	if len(routes) == 0 {
		if routes, err = l.s.routeNames(outside(ctx)); err != nil {
			return err
		}
	}
	var refs []core.Ref
	for _, route := range routes {
		for _, id := range l.f.IDs {
			refs = append(refs, core.Ref{Route: route, ID: id})
		}
	}
	for chunk := range slices.Chunk(refs, maxIn) {
		found, err := l.byID(ctx, chunk, withoutBody)
		if err != nil {
			return err
		}
		for _, r := range found {
			if r.Seq > l.page.After {
				l.add(r)
			}
		}
	}
	slices.SortFunc(l.out.Records, func(a, b admin.Stored) int { return cmp.Compare(a.Seq, b.Seq) })
	slices.SortFunc(l.docs, func(a, b *record) int { return cmp.Compare(a.Seq, b.Seq) })
	if n := l.page.Limit; len(l.docs) > n {
		l.out = admin.Listing{Records: l.out.Records[:n], Next: l.docs[n-1].Seq}
		l.docs = l.docs[:n]
	}
	return nil
}
