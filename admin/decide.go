package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/enum"
)

// DecisionResult is what has become of a decision.
type DecisionResult uint8

// The results of a decision.
const (
	// DecisionPending: the owner of the record is told, and has not carried it out yet. The decision stands.
	DecisionPending DecisionResult = iota + 1
	// DecisionCarriedOut: the record is abandoned with the reason of the decision.
	DecisionCarriedOut
	// DecisionSuperseded: the record was published meanwhile, or it ended for another reason, is not there any
	// more, or has another number.
	DecisionSuperseded
	// DecisionLocked: a transaction has locked the record, and nothing was done. Decide again.
	DecisionLocked
)

// String returns the name of the result.
func (f DecisionResult) String() string {
	return enum.Name("DecisionResult", f, 1, "pending", "ended", "otherwise", "locked")
}

// Decision is an operator's decision to end one record, with its result.
type Decision struct {
	// Route, Seq and ID name the record, as [Stored] does.
	Route string
	Seq   int64
	ID    string
	// Number is 0 for a new decision. A decision that the owner of the record was told about has a number. With it
	// the call only asks what has become of it.
	Number int64
	// Result is set by the store.
	Result DecisionResult
}

// DecideRequest asks to end records that have not ended.
type DecideRequest struct {
	// Reason is waybill.ReasonSkipped, or waybill.ReasonSetAside for records that are to be redriven some day.
	Reason waybill.Reason
	// Decisions are about different records, at most [MaxPageLimit].
	Decisions []Decision
}

// Terminator ends records that are due, scheduled, wait for a retry, or are being processed. [DecideAll] does it for
// all that a filter selects.
type Terminator interface {
	Inspector
	// DecideRecords returns req.Decisions with their results. A record that cannot be out is ended at once: one
	// that waits for a time, a cancellable one without a hold, a due one whose partition has no owner. Any other
	// can be out without a hold, and only the owner of its partition knows. So the owner is told. It ends the
	// record as soon as that is not out, unless it was published. DecideRecords does not wait for it. Call it again
	// with the decisions that it returned, until none is pending. If the partition has no owner any more, that call
	// carries the decision out. An ended record lets its key go on, with and without BlockAfterAbandon. After an
	// error the call can be repeated: decisions that owners were told about twice are carried out once.
	DecideRecords(ctx context.Context, req DecideRequest) ([]Decision, error)
}

const (
	// headWait is how long AwaitHead waits for an owner.
	headWait = 10 * time.Second
	headLook = 50 * time.Millisecond
)

// AwaitHead waits until the owner of a key has carried out the decision of notice, and returns the decision with its
// result. Every store's DecideHead ends with it if the owner must get a notice. If the partition loses its owner
// meanwhile, AwaitHead carries the decision out. It waits for ten seconds, or until ctx ends; the decision stands then.
// The texts of its errors begin with op.
func AwaitHead(ctx context.Context, op string, store Terminator, notice *core.Notice) error {
	look := time.NewTicker(headLook)
	defer look.Stop()
	req := DecideRequest{Reason: notice.Reason, Decisions: []Decision{{Route: notice.Route, Seq: notice.Seq, ID: notice.ID, Number: notice.Number}}}
	for limit := time.Now().Add(headWait); ; {
		decided, err := store.DecideRecords(ctx, req)
		if err != nil {
			return err
		}
		switch decided[0].Result {
		case DecisionCarriedOut:
			return nil
		case DecisionSuperseded:
			return NotHead(op, notice.Route, notice.Key, notice.ID)
		case DecisionPending, DecisionLocked:
		}
		if time.Now().After(limit) {
			return HeadPending(op, notice.Route, notice.Key, notice.ID)
		}
		select {
		case <-ctx.Done():
			return &waybill.Error{Op: op, Class: waybill.ClassOutage, Err: ctx.Err()}
		case <-look.C:
		}
	}
}

// CheckDecideRecords returns a copy of the decisions of req without their results, or an [*waybill.InvalidError]. Every
// store's DecideRecords begins with it.
func CheckDecideRecords(req DecideRequest) ([]Decision, error) {
	p := checkReason(nil, req.Reason)
	if n := len(req.Decisions); n > MaxPageLimit {
		p = append(p, fmt.Sprintf("Decisions: are %d; at most %d are allowed: split the call", n, MaxPageLimit))
	}
	out := make([]Decision, len(req.Decisions))
	seen := make(map[Decision]bool, len(out))
	for i, d := range req.Decisions {
		d.Result = 0
		out[i] = d
		if d.Route == "" || d.ID == "" || d.Seq <= 0 || d.Number < 0 {
			p = append(p, fmt.Sprintf("Decisions[%d]: has no Route, ID or Seq, or a negative Number: take them from List", i))
			break
		}
		d.Number = 0
		if seen[d] {
			p = append(p, fmt.Sprintf("Decisions[%d]: is about the same record as an earlier one", i))
			break
		}
		seen[d] = true
	}
	return out, waybill.Invalid("waybill: decide records", p...)
}

func checkReason(p []string, reason waybill.Reason) []string {
	if reason != waybill.ReasonSkipped && reason != waybill.ReasonSetAside {
		p = append(p, fmt.Sprintf("Reason: %q is none of an operator; choose waybill.ReasonSkipped or waybill.ReasonSetAside", reason))
	}
	return p
}
