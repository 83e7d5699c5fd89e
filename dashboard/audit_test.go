package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/demo"
)

// audited is an outbox that keeps an audit record, unless it is broken.
type audited struct {
	core.OutboxStore
	mu     sync.Mutex
	lines  []string
	broken bool
}

// Unwrap returns the outbox behind it.
func (a *audited) Unwrap() any { return a.OutboxStore }

// AppendAudit keeps a line as text, without what differs from run to run.
func (a *audited) AppendAudit(_ context.Context, e audit.Entry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return errors.New("the disk is full")
	}
	if _, err := e.Check(); err != nil {
		return err
	}
	a.lines = append(a.lines, fmt.Sprintf("%s %s %s %s %s %s, %d ids, edited %t: %s", e.Phase, e.User, e.Via, e.From, e.Action, e.Target, len(e.IDs), e.Before != e.After, e.Result))
	return nil
}

// ListAudit lists nothing.
func (a *audited) ListAudit(context.Context, int64, int) ([]audit.Entry, error) { return nil, nil }

// An act leaves a line before it begins and one when it has ended, in the record of the outbox. Without the first line
// it is not done.
// OP-07
func TestActsAreInTheAuditRecord(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	opts := byProxy(d.Options())
	record := &audited{OutboxStore: opts.Outboxes[0].Store}
	opts.Outboxes[0].Store = record
	first, _ := open(t, opts)
	b := as(t, first.page, "edsger")
	parked := "/parked/message?id=" + d.Bus.Parked(demo.Queue)[0].Envelope.ID

	record.broken = true
	before := states(t, d)
	has(t, b.confirm(b.ask("/messages?state=abandoned", "redrive", nil)), "nothing was done, since the audit record cannot be written: the disk is full")
	has(t, b.confirm(b.ask(parked, "replay", nil)), "nothing was done")
	if after := states(t, d); !equal(before, after) {
		t.Errorf("something has changed without a record: %v, before %v", after, before)
	}

	record.broken = false
	b.confirm(b.ask(parked, "replay", url.Values{"body": {"{}"}}))
	b.confirm(b.ask("/keys", "skip", nil))
	b.confirm(b.ask("/messages?state=abandoned", "redrive", nil))
	want := []string{
		"begin edsger proxy 10.0.0.7 replay queue billing.orders, 0 ids, edited true: ",
		"end edsger proxy 10.0.0.7 replay queue billing.orders, 1 ids, edited true: 1 message replayed",
		"begin edsger proxy 10.0.0.7 skip outbox shop, 0 ids, edited false: ",
		"end edsger proxy 10.0.0.7 skip outbox shop, 1 ids, edited false: ",
		"begin edsger proxy 10.0.0.7 redrive outbox shop, 0 ids, edited false: ",
		"end edsger proxy 10.0.0.7 redrive outbox shop, 0 ids, edited false: 1 sent again, of 3 that matched",
	}
	if !slices.Equal(record.lines, want) {
		t.Errorf("the record: %q", record.lines)
	}
}
