package sqlite

import (
	"context"
	"database/sql"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Terminator = (*Store)(nil)

const (
	decisionsText = `SELECT number, route, seq, id FROM waybill_outbox_notices WHERE kind = {tell_decide}`
	undecideText  = `DELETE FROM waybill_outbox_notices WHERE number = ?1`
)

// DecideRecords ends records, or tells their owners to; see [admin.Terminator]. It is one transaction with SQLite's
// write lock.
func (s *Store) DecideRecords(ctx context.Context, req admin.DecideRequest) (out []admin.Decision, err error) {
	asked, err := admin.CheckDecideRecords(req)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	err = s.write(ctx, "decide records", func(w *work) (changed bool, err error) {
		out = slices.Clone(asked)
		d := decider{work: w, reason: req.Reason}
		for i := range out {
			if err := d.decide(ctx, &out[i]); err != nil {
				return false, err
			}
		}
		return d.changed, nil
	})
	if err != nil {
		return nil, err
	}
	s.Wake()
	return out, nil
}

// decider is one DecideRecords in its transaction.
type decider struct {
	*work
	reason  waybill.Reason
	changed bool
	pending pending
}

// pending are the numbers of all decisions that owners have not carried out; nil = not read yet.
type pending map[core.Ref][]int64

// undecide deletes the decisions about a record that its owner has not carried out.
func (p *pending) undecide(ctx context.Context, w *work, ref core.Ref) error {
	if *p == nil {
		*p = pending{}
		err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
			var number int64
			var to core.Ref
			err := rows.Scan(&number, &to.Route, &to.Seq, &to.ID)
			(*p)[to] = append((*p)[to], number)
			return true, err
		}, decisionsText)
		if err != nil {
			return err
		}
	}
	for _, number := range (*p)[ref] {
		if _, err := w.exec(ctx, undecideText, number); err != nil {
			return err
		}
	}
	return nil
}

func (d *decider) decide(ctx context.Context, to *admin.Decision) error {
	to.Result = admin.DecisionSuperseded
	r, err := d.lookup(ctx, nil, storedText, to.Seq)
	if err != nil || r == nil || r.Route != to.Route || r.Envelope.ID != to.ID {
		return err
	}
	told := false
	if to.Number != 0 && r.row.Live() {
		var one int
		if told, err = d.one(ctx, []any{&one}, untoldText, to.Number); err != nil {
			return err
		}
	}
	u, err := d.partition(ctx, &r.row)
	if err != nil {
		return err
	}
	var tells bool
	to.Result, tells = rules.Decided(&r.row.Row, u, to, told, d.reason)
	switch {
	case to.Result == admin.DecisionPending && to.Number == 0:
		d.changed = true
		_, err = d.one(ctx, []any{&to.Number}, tellOwnerText,
			int64(core.NoticeDecide), to.Route, int64(r.row.Slot), r.row.key, to.ID, to.Seq, string(d.reason))
	case to.Result == admin.DecisionCarriedOut && r.row.Live():
		return d.end(ctx, &r.row, u, tells)
	}
	return err
}

// end ends r, which no process can have out, and all earlier decisions about it.
func (d *decider) end(ctx context.Context, r *row, u rules.Partition, tells bool) error {
	d.changed = true
	if err := d.pending.undecide(ctx, d.work, core.Ref{Route: r.Route, Seq: r.Seq, ID: r.ID}); err != nil {
		return err
	}
	if err := d.abandon(ctx, r, u, d.reason); err != nil || !tells {
		return err
	}
	return d.tell(ctx, core.NoticeKey, r)
}
