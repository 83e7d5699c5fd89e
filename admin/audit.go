package admin

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

// AuditEntry is a line of the audit record: that an act of an operator begins, or that it has ended.
type AuditEntry struct {
	// Number orders the lines. At is the time by the clock of the database, and Role its user. The store sets all
	// three, and who writes the line cannot.
	Number int64
	At     time.Time
	Role   string
	// Act is the same for both lines of an act, and Phase is AuditBegin or AuditEnd.
	Act, Phase string
	// User is who acts, Via how, such as command or password, and From where: an address, or a host.
	User, Via, From string
	// Action is what is done, such as redrive, Target on what, such as a queue, and Filter the selection in full.
	Action, Target, Filter string
	// IDs are the messages, as far as they are known: at most MaxAuditIDs.
	IDs []string
	// Before and After are the SHA-256 of a body and of the one in its place.
	Before, After string
	// Result is what became of it, at the end.
	Result string
}

// The phases of an act.
const (
	AuditBegin = "begin"
	AuditEnd   = "end"
)

const (
	// MaxAuditIDs is how many ids a line has at most.
	MaxAuditIDs = 100
	// MaxAuditText is how many bytes each text of a line has at most.
	MaxAuditText = 4096
	auditWait    = 10 * time.Second
)

// Auditor is a store that keeps the audit record: lines are added, and never changed.
type Auditor interface {
	// AppendAudit adds a line. When it returns nil, the line is stored.
	AppendAudit(ctx context.Context, e AuditEntry) error
	// ListAudit returns lines with a Number less than before, the newest first, and at most limit of them; 0 =
	// from the newest one.
	ListAudit(ctx context.Context, before int64, limit int) ([]AuditEntry, error)
}

// Add adds an id to a line that has room.
func (e *AuditEntry) Add(id string) {
	if len(e.IDs) < MaxAuditIDs {
		e.IDs = append(e.IDs, id)
	}
}

// Body notes which body takes the place of which.
func (e *AuditEntry) Body(before, after []byte) {
	hash := func(body []byte) string {
		sum := sha256.Sum256(body)
		return hex.EncodeToString(sum[:])
	}
	e.Before, e.After = hash(before), hash(after)
}

// Audit does something between two lines of the audit record. If the first one cannot be stored, nothing is done. do
// adds to e what the last line says besides. With a nil Auditor there is no record.
func Audit(ctx context.Context, to Auditor, e *AuditEntry, do func(context.Context) error) error {
	if to == nil {
		return do(ctx)
	}
	e.Act, e.Phase = cmp.Or(e.Act, rand.Text()), AuditBegin
	begin, cancel := context.WithTimeout(ctx, auditWait)
	err := to.AppendAudit(begin, *e)
	cancel()
	if err != nil {
		return fmt.Errorf("nothing was done, since the audit record cannot be written: %w", err)
	}
	err = do(ctx)
	e.Phase = AuditEnd
	if err != nil {
		if e.Result != "" {
			e.Result += "; "
		}
		e.Result += "failed: " + core.ErrorText(err)
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), auditWait)
	defer cancel()
	if lost := to.AppendAudit(ctx, *e); lost != nil {
		return errors.Join(err, fmt.Errorf("the end of the act is not in the audit record: %w", lost))
	}
	return err
}

// CheckAudit returns e as a store keeps it, with texts that it has cut, or an [*waybill.InvalidError].
func CheckAudit(e AuditEntry) (AuditEntry, error) {
	var p []string
	if e.Act == "" {
		p = append(p, "Act: is empty: give both lines of an act the same name")
	}
	if e.Action == "" {
		p = append(p, "Action: is empty")
	}
	if e.Phase != AuditBegin && e.Phase != AuditEnd {
		p = append(p, fmt.Sprintf("Phase: %q is neither begin nor end", e.Phase))
	}
	if len(e.IDs) > MaxAuditIDs {
		p = append(p, fmt.Sprintf("IDs: has %d; at most %d are kept", len(e.IDs), MaxAuditIDs))
	}
	for _, text := range []*string{&e.Act, &e.User, &e.Via, &e.From, &e.Action, &e.Target, &e.Filter, &e.Before, &e.After, &e.Result} {
		*text = check.Clip(*text, MaxAuditText)
	}
	ids := make([]string, len(e.IDs))
	for i, id := range e.IDs {
		ids[i] = check.Clip(id, MaxAuditText)
	}
	e.IDs = ids
	return e, waybill.Invalid("waybill: audit", p...)
}
