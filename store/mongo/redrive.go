package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var (
	_ admin.Redriver = (*Store)(nil)
	_ admin.Purger   = (*Store)(nil)
)

// Redrive puts failed and abandoned records back, in one bounded step; see [admin.Redriver]. It finds them as List
// does, and then checks each again. It touches no record that a member holds or that a transaction has locked. Control
// records tell the owners.
func (s *Store) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	req, err := admin.CheckRedrive(req, s.opts.Limits)
	if err != nil {
		return admin.Redriven{}, err
	}
	mark, err := rules.RepairMark(ctx, s, &req)
	if err != nil {
		return admin.Redriven{}, err
	}
	found, docs, err := s.list(ctx, "redrive", &req.Filter, req.Page, req.Takes)
	if err != nil {
		return admin.Redriven{}, err
	}
	out := admin.Redriven{Next: found.Next}
	live := map[dedupeID]bool{} // dedupe keys to which this step gave a live message
	p := pieces{
		s: s, op: "redrive",
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			d := redriver{work: w, req: &req, mark: mark, live: live}
			err := d.run(ctx, docs[from:to])
			return func() { d.apply(&out) }, err
		},
		busy: func(int) {}, // somebody was faster
	}
	if err := p.run(ctx, 0, len(docs)); err != nil {
		return admin.Redriven{}, err
	}
	s.Wake()
	return out, nil
}

// redriver is one step of Redrive in its transaction.
type redriver struct {
	*work
	req    *admin.RedriveRequest
	mark   string // of a message that is repaired
	last   int64  // the last number that was drawn
	live   map[dedupeID]bool
	mine   map[dedupeID]bool
	causes []string
	back   []*record
	models []driver.WriteModel
	told   []core.Notice
}

func (d *redriver) apply(out *admin.Redriven) {
	for _, cause := range d.causes {
		out.Count(cause)
	}
	for key := range d.mine {
		d.live[key] = true
	}
}

func (d *redriver) run(ctx context.Context, found []*record) error {
	docs, err := d.metas(ctx, "sequence")
	if err != nil {
		return err
	}
	d.last, d.mine = docs["sequence"].Value, map[dedupeID]bool{}
	refs := make([]core.Ref, len(found))
	for i, r := range found {
		refs[i] = r.ref()
	}
	now, err := d.byID(ctx, refs, withoutBody)
	if err != nil {
		return err
	}
	for _, old := range found {
		r := now[old.ID]
		if r == nil || r.Hold != 0 {
			continue
		}
		st := d.stored(r, nil)
		if !d.req.Filter.Matches(&st) || !d.req.Takes(st.State, st.Reason) {
			continue
		}
		cause, err := d.refusal(ctx, r, &st)
		if err != nil {
			return err
		}
		if d.causes = append(d.causes, cause); cause != "" {
			continue
		}
		if key := r.dedupeKey(); key != nil {
			d.mine[*key] = true
		}
		model, told := d.requeue(r, d.req.Body, d.mark)
		d.back, d.models, d.told = append(d.back, r), append(d.models, model), append(d.told, told)
	}
	if d.req.DryRun || len(d.models) == 0 {
		return nil
	}
	if err := d.write(ctx, d.models); err != nil {
		return locked(raced(err))
	}
	if err := d.undecide(ctx, d.back); err != nil { // the later command counts
		return err
	}
	return d.tell(ctx, d.told)
}

// refusal returns why r cannot be put back, or "".
func (d *redriver) refusal(ctx context.Context, r *record, st *admin.Stored) (string, error) {
	taken, err := d.outlived(ctx, r)
	if err != nil {
		return "", err
	}
	if key := r.dedupeKey(); key != nil {
		taken = taken || d.live[*key] || d.mine[*key]
	}
	return d.req.Refusal(&admin.Candidate{
		State: st.State, Reason: st.Reason, Age: st.Age, Expired: st.Envelope.Expired(d.now),
		Keyed: r.Key != "", Last: r.Seq >= d.last, Taken: taken,
	}), nil
}

// dedupeKey returns the dedupe key with which r was staged, or nil.
func (r *record) dedupeKey() *dedupeID {
	if r.DedupeKey == "" {
		return nil
	}
	return &dedupeID{r.Route, r.Topic, r.DedupeKey}
}

// outlived reports whether a live message has the dedupe key of the abandoned record r.
func (w *work) outlived(ctx context.Context, r *record) (bool, error) {
	key := r.dedupeKey()
	if key == nil || r.Phase != phaseAbandoned {
		return false, nil
	}
	found, err := w.all(ctx, bson.M{"dedupe": *key}, options.Find().SetProjection(headOnly).SetLimit(1))
	return len(found) > 0, err
}

// requeue returns the change that makes r, which no session holds, ready again at its place, and the notice for
// its owner. An expiry that has passed goes.
func (w *work) requeue(r *record, body []byte, mark string) (driver.WriteModel, core.Notice) {
	key, ended := r.dedupeKey(), !r.live()
	to, kind := rules.Requeue(r.facts())
	update := r.become(&rules.Change{Row: to}, w.now)
	set, unset := update["$set"].(bson.M), update["$unset"].(bson.M) //nolint:forcetypeassert // become made them
	for _, name := range []string{"settled", "class", "error", "error_at"} {
		unset[name] = ""
	}
	if !r.Expires.IsZero() && !r.Expires.After(w.now) {
		unset["expires"], unset["attrs.a."+core.AttrExpires] = "", ""
	}
	if key != nil && ended { // a live one has it, unless it was replaced
		set["dedupe"] = key
	}
	if body != nil {
		set["body"] = body
	}
	if mark != "" {
		update["$push"] = bson.M{"attrs.h": [2]string{rules.RepairHeader, mark}}
	}
	return change(r.ID, update), noticeOf(kind, r)
}

// PurgeRecords deletes records for good, in one bounded step; see [admin.Purger]. It finds them as List does, and then
// checks each again. Records that another transaction has locked stay.
func (s *Store) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	req, err := admin.CheckPurge(req)
	if err != nil {
		return admin.Purged{}, err
	}
	found, docs, err := s.list(ctx, "purge records", &req.Filter, req.Page, func(core.State, waybill.Reason) bool { return true })
	if err != nil {
		return admin.Purged{}, err
	}
	out := admin.Purged{Next: found.Next}
	p := pieces{
		s: s, op: "purge records",
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			matched, deleted, err := w.purge(ctx, &req, docs[from:to])
			return func() { out.Matched, out.Deleted = out.Matched+matched, out.Deleted+deleted }, err
		},
		busy: func(int) { out.Matched++ },
	}
	if err := p.run(ctx, 0, len(docs)); err != nil {
		return admin.Purged{}, err
	}
	s.Wake() // a key may go on
	return out, nil
}

// purge deletes those of found that req still takes, and tells the owners of their keys.
func (w *work) purge(ctx context.Context, req *admin.PurgeRequest, found []*record) (matched, deleted int, err error) {
	if err := w.clock(ctx); err != nil {
		return 0, 0, err
	}
	refs := make([]core.Ref, len(found))
	for i, r := range found {
		refs[i] = r.ref()
	}
	now, err := w.byID(ctx, refs, withoutBody)
	if err != nil {
		return 0, 0, err
	}
	ids := bson.A{}
	var told []core.Notice
	for _, old := range found {
		r := now[old.ID]
		if r == nil {
			continue
		}
		st := w.stored(r, nil)
		if !req.Filter.Matches(&st) {
			continue
		}
		if matched++; !req.Takes(st.State, r.Hold == 0 && r.waits()) {
			continue
		}
		ids = append(ids, r.ID)
		if rules.Tells(r.facts()) {
			told = append(told, noticeOf(core.NoticeKey, r))
		}
	}
	if req.DryRun || len(ids) == 0 {
		return matched, len(ids), nil
	}
	if _, err := w.s.outbox.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": ids}}); err != nil {
		return 0, 0, locked(err)
	}
	return matched, len(ids), w.tell(ctx, told)
}
