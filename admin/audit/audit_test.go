package audit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin/audit"
)

// record keeps lines, and fails at one phase.
type record struct {
	lines []audit.Entry
	fails string
}

func (r *record) AppendAudit(ctx context.Context, e audit.Entry) error {
	if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
		return errors.New("the call is not bounded, or has ended")
	}
	if e.Phase == r.fails {
		return errors.New("no room")
	}
	r.lines = append(r.lines, e)
	return nil
}

func (r *record) ListAudit(context.Context, int64, int) ([]audit.Entry, error) {
	return r.lines, nil
}

// An act is done between its two lines, and not at all without the first one. The last one is written although the
// caller has gone, and says how the act failed.
func TestAudit(t *testing.T) {
	t.Parallel()
	failed := errors.New("the store is down")
	for _, tc := range []struct {
		name, fails, result, err string
		does                     error
		done                     bool
		lines                    int
	}{
		{name: "done", done: true, lines: 2, result: "1 changed"},
		{name: "failed", does: failed, done: true, lines: 2, result: "1 changed; failed: the store is down", err: "the store is down"},
		{name: "no begin", fails: "begin", err: "nothing was done, since the audit record cannot be written: no room"},
		{name: "no end", fails: "end", done: true, lines: 1, err: "the end of the act is not in the audit record: no room"},
		{name: "failed and no end", fails: "end", does: failed, done: true, lines: 1, err: "the store is down"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		r, done := &record{fails: tc.fails}, false
		e := &audit.Entry{User: "ada", Action: "redrive"}
		err := e.Record(ctx, r, func(context.Context) error {
			done = true
			cancel()
			e.Result = "1 changed"
			return tc.does
		})
		cancel()
		if done != tc.done || len(r.lines) != tc.lines || (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) || tc.does != nil && !errors.Is(err, tc.does) {
			t.Errorf("%s: done %t, %d lines, error %v", tc.name, done, len(r.lines), err)
		}
		if tc.lines == 2 && (r.lines[0].Act == "" || r.lines[0].Act != r.lines[1].Act || r.lines[0].Result != "" || r.lines[1].Result != tc.result) {
			t.Errorf("%s: lines %+v", tc.name, r.lines)
		}
	}
	done := false
	if err := new(audit.Entry).Record(t.Context(), nil, func(context.Context) error { done = true; return nil }); err != nil || !done {
		t.Errorf("without a record: done %t, error %v", done, err)
	}
	if _, err := (audit.Entry{Phase: "middle", IDs: make([]string, 101)}).Check(); !errors.Is(err, waybill.ErrInvalid) || strings.Count(err.Error(), ": ") < 4 {
		t.Errorf("a bad line: %v", err)
	}
	e := &audit.Entry{}
	for range 200 {
		e.Add("x")
	}
	if len(e.IDs) != 100 {
		t.Errorf("%d ids", len(e.IDs))
	}
}
