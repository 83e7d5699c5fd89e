package sqlite

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Redriver = (*Store)(nil)

const (
	// requeueText makes a record what rules.Requeue has made of it, in line at its place, without an error. It
	// removes an expiry that has passed.
	requeueText = `UPDATE waybill_outbox
		SET state = ?3, version = ?4, blocks = ?5, maybe_sent = ?6, attempts = ?7, crashes = ?8, deliveries = ?9, reason = ?10,
		due_at = NULL, settled_at = NULL, error = NULL, error_at = NULL,
		expires_at = CASE WHEN expires_at > ?2 THEN expires_at END,
		attrs = CASE WHEN expires_at <= ?2 AND json_valid(attrs) THEN json_remove(attrs, '$.a.expirytime') ELSE attrs END
		WHERE seq = ?1 AND hold = 0`
	// repairText replaces a body, and adds a header unless its value is empty.
	repairText = `UPDATE waybill_outbox
		SET body = ?2, attrs = CASE WHEN ?3 <> '' AND json_valid(attrs) THEN json_set(attrs, '$.h."' || ?4 || '"', ?3) ELSE attrs END
		WHERE seq = ?1 AND hold = 0`
	outlivedText = `SELECT 1
		FROM waybill_outbox
		WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL`
)

// Redrive puts failed and abandoned records back, in one bounded step; see [admin.Redriver]. It finds them as List
// does, before it takes SQLite's write lock, and then checks each again. It never touches a record that a member holds.
// Notices tell the owners.
func (s *Store) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	req, err := admin.CheckRedrive(req, s.opts.Limits)
	if err != nil {
		return admin.Redriven{}, err
	}
	mark, err := rules.RepairMark(ctx, s, &req)
	if err != nil {
		return admin.Redriven{}, err
	}
	found, err := s.list(ctx, "redrive", &req.Filter, req.Page, req.Takes)
	if err != nil {
		return admin.Redriven{}, err
	}
	d := redriver{}
	step := func(w *work) error {
		d = redriver{work: w, req: &req, mark: mark, out: admin.Redriven{Next: found.Next}, live: map[[3]string]bool{}}
		return d.run(ctx, found.Records)
	}
	switch {
	case len(found.Records) == 0:
		return admin.Redriven{Next: found.Next}, nil
	case req.DryRun:
		err = s.read(ctx, "redrive", step)
	default:
		err = s.write(ctx, "redrive", func(w *work) (bool, error) { return true, step(w) })
		s.Wake()
	}
	if err != nil {
		return admin.Redriven{}, err
	}
	return d.out, nil
}

// redriver is one step of Redrive in its transaction.
type redriver struct {
	*work
	req       *admin.RedriveRequest
	mark      string // of a message that is repaired
	lastDrawn int64
	out       admin.Redriven
	live      map[[3]string]bool // dedupe keys that this step gave a live message
	pending   pending
}

func (d *redriver) run(ctx context.Context, found []admin.Stored) (err error) {
	if d.lastDrawn, err = d.last(ctx); err != nil {
		return err
	}
	for i := range found {
		r, err := d.lookup(ctx, nil, storedText, found[i].Seq)
		if err != nil {
			return err
		}
		if r == nil || !d.s.matches(&d.req.Filter, r) || !d.req.Takes(r.State, r.Reason) {
			continue // somebody was faster
		}
		cause, err := d.refusal(ctx, r)
		if err != nil {
			return err
		}
		d.out.Count(cause)
		if cause != "" {
			continue
		}
		d.live[dedupeKey(r)] = true
		if d.req.DryRun {
			continue
		}
		if err := d.requeue(ctx, &d.pending, &r.row); err != nil {
			return err
		}
		if d.req.Body != nil {
			if _, err := d.exec(ctx, repairText, r.Seq, d.req.Body, d.mark, rules.RepairHeader); err != nil {
				return err
			}
		}
	}
	return nil
}

// requeue makes r, which no session holds, ready again and tells its owner. Earlier decisions about r are void.
func (w *work) requeue(ctx context.Context, before *pending, r *row) error {
	to, kind := rules.Requeue(&r.Row)
	if _, err := w.exec(ctx, requeueText, r.Seq, w.now, int64(to.State), to.Version, to.Blocks, to.MaybeSent, to.Attempts, to.Crashes, to.Deliveries,
		nullable(string(to.Reason))); err != nil {
		return err
	}
	if err := before.undecide(ctx, w, core.Ref{Route: r.Route, Seq: r.Seq, ID: r.ID}); err != nil {
		return err
	}
	return w.tell(ctx, kind, r)
}

// refusal returns why r cannot be put back, or "".
func (d *redriver) refusal(ctx context.Context, r *stored) (string, error) {
	taken, err := d.outlived(ctx, r)
	if err != nil {
		return "", err
	}
	return d.req.Refusal(&admin.Candidate{
		State: r.State, Reason: r.Reason, Age: r.Age, Expired: r.Envelope.Expired(time.UnixMicro(d.now)),
		Keyed: r.Envelope.Key != "", Last: r.Seq >= d.lastDrawn, Taken: taken || r.dedupe != "" && d.live[dedupeKey(r)],
	}), nil
}

func dedupeKey(r *stored) [3]string { return [3]string{r.Route, r.Envelope.Topic, r.dedupe} }

// outlived reports whether a live message has the dedupe key of the abandoned record r.
func (w *work) outlived(ctx context.Context, r *stored) (taken bool, err error) {
	if r.dedupe == "" || r.State != core.StateAbandoned {
		return false, nil
	}
	var one int
	return w.one(ctx, []any{&one}, outlivedText, r.Route, r.Envelope.Topic, r.dedupe)
}
