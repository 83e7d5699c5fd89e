// Package audit is the record of the acts of operators: the user, the address, the act and its result. A store keeps it
// beside its outbox, if it is a [Recorder]; find out with core.As. The command and the dashboard write it.
//
// # Guarantees
//
//   - [Entry.Record] does nothing whose begin it could not record.
//   - A line holds hashes of bodies, and no body.
//
// # Concurrency
//
// A Recorder is safe for concurrent use. An Entry is not.
//
// # Ownership
//
// A Recorder keeps none of its arguments. Results belong to the caller.
//
// # Limits
//
// A line has at most 100 ids, and 4096 bytes in each of its texts.
package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// Entry is a line of the audit record: that an act of an operator begins, or that it has ended.
type Entry struct {
	// Number orders the lines. At is the time by the clock of the database, and Role its user. The store sets all
	// three; the writer of the line cannot.
	Number int64
	At     time.Time
	Role   string
	// Act is the same for both lines of an act, and Phase is begin or end.
	Act, Phase string
	// User is who acts, Via how, such as command or password, and From where: an address, or a host.
	User, Via, From string
	// Action is what is done, such as redrive, Target on what, such as a queue, and Filter the selection in full.
	Action, Target, Filter string
	// IDs are the messages, as far as they are known: at most 100.
	IDs []string
	// Before and After are the SHA-256 of a body and of the one in its place.
	Before, After string
	// Result is what became of it, at the end.
	Result string
}

// The phases of an act.
const (
	begins = "begin"
	ends   = "end"
)

const (
	maxIDs  = 100
	maxText = 4096 // bytes
	wait    = 10 * time.Second
)

// Recorder is a store that keeps the audit record: lines are added, and never changed.
type Recorder interface {
	// AppendAudit adds a line. When it returns nil, the line is stored.
	AppendAudit(ctx context.Context, e Entry) error
	// ListAudit returns lines with a Number less than before, the newest first, and at most limit of them; 0 =
	// from the newest one.
	ListAudit(ctx context.Context, before int64, limit int) ([]Entry, error)
}

// Add adds an id to a line that has room.
func (e *Entry) Add(id string) {
	if len(e.IDs) < maxIDs {
		e.IDs = append(e.IDs, id)
	}
}

// Body notes which body takes the place of which.
func (e *Entry) Body(before, after []byte) {
	hash := func(body []byte) string {
		sum := sha256.Sum256(body)
		return hex.EncodeToString(sum[:])
	}
	e.Before, e.After = hash(before), hash(after)
}

// Record does something between two lines of the audit record, and makes both of e. If the first one cannot be stored,
// nothing is done. do adds to e what the last line says besides. With a nil Recorder there is no record.
func (e *Entry) Record(ctx context.Context, to Recorder, do func(context.Context) error) error {
	if to == nil {
		return do(ctx)
	}
	e.Act, e.Phase = cmp.Or(e.Act, rand.Text()), begins
	first, cancel := context.WithTimeout(ctx, wait)
	err := to.AppendAudit(first, *e)
	cancel()
	if err != nil {
		return fmt.Errorf("nothing was done, since the audit record cannot be written: %w", err)
	}
	err = do(ctx)
	e.Phase = ends
	if err != nil {
		if e.Result != "" {
			e.Result += "; "
		}
		e.Result += "failed: " + core.ErrorText(err)
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	if lost := to.AppendAudit(ctx, *e); lost != nil {
		return errors.Join(err, fmt.Errorf("the end of the act is not in the audit record: %w", lost))
	}
	return err
}

// Check returns the line as a store keeps it, with each text cut to 4096 bytes, or an [*waybill.InvalidError].
func (e Entry) Check() (Entry, error) {
	var p []string
	if e.Act == "" {
		p = append(p, "Act: is empty: give both lines of an act the same name")
	}
	if e.Action == "" {
		p = append(p, "Action: is empty")
	}
	if e.Phase != begins && e.Phase != ends {
		p = append(p, fmt.Sprintf("Phase: %q is neither begin nor end", e.Phase))
	}
	if len(e.IDs) > maxIDs {
		p = append(p, fmt.Sprintf("IDs: has %d; at most %d are kept", len(e.IDs), maxIDs))
	}
	for _, text := range []*string{&e.Act, &e.User, &e.Via, &e.From, &e.Action, &e.Target, &e.Filter, &e.Before, &e.After, &e.Result} {
		*text = check.Clip(*text, maxText)
	}
	ids := make([]string, len(e.IDs))
	for i, id := range e.IDs {
		ids[i] = check.Clip(id, maxText)
	}
	e.IDs = ids
	return e, waybill.Invalid("waybill: audit", p...)
}
