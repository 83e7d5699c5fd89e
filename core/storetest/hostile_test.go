package storetest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/hlc"
)

// hostile is a store, and a harness, that asks spoils before each call. If it says yes the call answers nothing.
type hostile struct {
	*brokenOps
	spoils func(method string) bool
}

func (h *hostile) Store() core.OutboxStore { return h }

// call makes a call, or answers nothing.
func call[T any](h *hostile, method string, fn func() (T, error)) (answer T, err error) {
	if h.spoils(method) {
		return answer, nil
	}
	return fn()
}

func (h *hostile) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	return call(h, "Heartbeat", func() (core.Membership, error) { return h.brokenOps.Heartbeat(ctx, m) })
}

func (h *hostile) Read(ctx context.Context, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	return call(h, "Read", func() (core.ReadResult, error) { return h.brokenOps.Read(ctx, self, l) })
}

func (h *hostile) Hold(ctx context.Context, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
	return call(h, "Take", func() ([]core.HoldResult, error) { return h.brokenOps.Hold(ctx, self, w) })
}

func (h *hostile) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	return call(h, "Due", func() (core.DueResult, error) { return h.brokenOps.Due(ctx, self, parts, limit) })
}

func (h *hostile) Settle(ctx context.Context, self core.Session, os []core.Outcome) core.Results {
	if h.spoils("Settle") {
		return nil
	}
	return h.brokenOps.Settle(ctx, self, os)
}

func (h *hostile) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	return call(h, "Wait", func() (core.WakeCause, error) { return h.brokenOps.Wait(ctx, routes, limit) })
}

func (h *hostile) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	return call(h, "Clean", func() (core.Cleaned, error) { return h.brokenOps.Clean(ctx, owner, lease) })
}

func (h *hostile) Counts(ctx context.Context) ([]admin.Count, error) {
	return call(h, "Counts", func() ([]admin.Count, error) { return h.brokenOps.Counts(ctx) })
}

func (h *hostile) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	return call(h, "HighWater", func() (hlc.Timestamp, error) { return h.brokenOps.HighWater(ctx) })
}

func (h *hostile) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	return call(h, "Inspect", func() (admin.Stored, error) { return h.brokenOps.Inspect(ctx, route, id) })
}

func (h *hostile) List(ctx context.Context, f admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	return call(h, "List", func() (admin.Listing, error) { return h.brokenOps.List(ctx, f, p) })
}

func (h *hostile) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	return call(h, "Redrive", func() (admin.Redriven, error) { return h.brokenOps.Redrive(ctx, req) })
}

func (h *hostile) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	return call(h, "PurgeRecords", func() (admin.Purged, error) { return h.brokenOps.PurgeRecords(ctx, req) })
}

func (h *hostile) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) ([]admin.BlockedKey, bool, error) {
	if h.spoils("BlockedKeys") {
		return nil, false, nil
	}
	return h.brokenOps.BlockedKeys(ctx, req)
}

func (h *hostile) DecideHead(ctx context.Context, route, key, id string, a admin.HeadAction) error {
	if h.spoils("DecideHead") {
		return nil
	}
	return h.brokenOps.DecideHead(ctx, route, key, id, a)
}

func (h *hostile) Records(ctx context.Context, route string) ([]storetest.StoredRecord, error) {
	return call(h, "Records", func() ([]storetest.StoredRecord, error) { return h.brokenOps.Records(ctx, route) })
}

func (h *hostile) WithRetention(ctx context.Context, r waybill.Retention) (storetest.Harness, error) {
	if h.spoils("WithRetention") {
		return nil, nil //nolint:nilnil // that is what is wrong
	}
	other, err := h.broken.WithRetention(ctx, r)
	return &hostile{&brokenOps{broken: other.(*broken)}, h.spoils}, err
}

func (h *hostile) Begin(ctx context.Context) (storetest.Tx, error) {
	if h.spoils("Begin") {
		return nil, nil //nolint:nilnil // that is what is wrong
	}
	tx, err := h.brokenOps.Begin(ctx)
	return &hostileTx{tx.(*brokenTx), h}, err
}

type hostileTx struct {
	*brokenTx
	h *hostile
}

func (t *hostileTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return call(t.h, "Stage", func() ([]waybill.Staged, error) { return t.brokenTx.Stage(ctx, msgs...) })
}

func (t *hostileTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	return call(t.h, "Cancel", func() ([]waybill.CancelStatus, error) { return t.brokenTx.Cancel(ctx, keys...) })
}

func (t *hostileTx) Commit(ctx context.Context) error {
	if t.h.spoils("Commit") {
		return nil
	}
	return t.brokenTx.Commit(ctx)
}

// runHostile runs a check. ended is called when the check has ended, and unblocks the blocked calls.
func runHostile(t *testing.T, c *storetest.Check, b broken, spoils func(method string) bool, ended func()) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), storetest.Timeout)
		defer cancel()
		start := time.Now()
		err = c.Run(ctx, &hostile{&brokenOps{broken: b.on(newStore(t))}, spoils})
		if d := time.Since(start); d > 2*storetest.Timeout {
			t.Errorf("check %s ended after %s", c.Name, d)
		}
		ended()
		time.Sleep(2 * time.Hour) // lets go of what waits in vain
	})
	return err
}

// callers returns up to most checks that call each method.
func callers(t *testing.T, most int) map[string][]storetest.Check {
	t.Helper()
	out := map[string][]storetest.Check{}
	for _, c := range storetest.Checks() {
		var mu sync.Mutex
		seen := map[string]bool{}
		_ = runHostile(t, &c, broken{}, func(method string) bool {
			mu.Lock()
			defer mu.Unlock()
			seen[method] = true
			return false
		}, func() {})
		for method := range seen {
			if len(out[method]) < most {
				out[method] = append(out[method], c)
			}
		}
	}
	return out
}

// named fails unless err is a failure of the check that names the check, its line and its promise.
func named(t *testing.T, c *storetest.Check, err error) {
	t.Helper()
	if err == nil || errors.Is(err, storetest.ErrNotDeclared) {
		t.Errorf("check %s does not notice: %v", c.Name, err)
	} else if s := err.Error(); !strings.HasPrefix(s, "check "+c.Name+" (") || !strings.Contains(s, ".go:") ||
		!strings.Contains(s, "about it: ") || strings.Contains(s, "about it: nothing") || strings.Contains(s, "%!") {
		t.Errorf("check %s fails without its name, its place or its promise: %v", c.Name, err)
	}
}

// A call that panics, or never returns, fails the check that makes it, within its time. It hangs or panics nothing.
func TestSuiteSurvivesPanicsAndBlocks(t *testing.T) { // TE-01
	t.Parallel()
	for method, checks := range callers(t, 3) {
		for _, c := range checks {
			t.Run(method+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				err := runHostile(t, &c, broken{}, func(m string) bool {
					if m == method {
						panic("the adapter panics")
					}
					return false
				}, func() {})
				named(t, &c, err)
				// The bubble makes the channel.
				free := sync.OnceValue(func() chan struct{} { return make(chan struct{}) })
				named(t, &c, runHostile(t, &c, broken{}, func(m string) bool {
					if m == method {
						<-free()
					}
					return m == method
				}, func() { close(free()) }))
			})
		}
	}
}

// A call that answers nothing where it should fails a check.
func TestSuiteNoticesEmptyAnswers(t *testing.T) { // TE-01
	t.Parallel()
	for method, checks := range callers(t, 40) {
		if method == "Wait" || method == "Records" {
			continue // may return early; need not keep anything
		}
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			failed := false
			for _, c := range checks {
				err := runHostile(t, &c, broken{}, func(m string) bool { return m == method }, func() {})
				if err != nil && !errors.Is(err, storetest.ErrNotDeclared) {
					failed = true
					named(t, &c, err)
				}
			}
			if !failed {
				t.Errorf("none of %d checks notices that %s answers nothing", len(checks), method)
			}
		})
	}
}

// Answers that never end, or times that cannot be, fail a check. No check follows them for ever.
func TestSuiteNoticesEndlessAnswers(t *testing.T) { // TE-01
	t.Parallel()
	for name, b := range map[string]broken{
		"more records for ever": {page: func(_ *broken, p *core.ReadResult) {
			for i := range p.Ranges {
				p.Ranges[i].More = true
			}
		}},
		"more waiting records for ever": {page: func(_ *broken, p *core.ReadResult) { p.MoreBlocking = true }},
		"more to clean for ever":        cleaned(func(done *core.Cleaned) { done.More = true }),
		"negative ages":                 {record: func(r *core.Record) { r.DueFor = -time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed := false
			for _, c := range storetest.Checks() {
				if strings.HasPrefix(c.Name, "wait") || strings.HasPrefix(c.Name, "cancel") {
					continue
				}
				if err := runHostile(t, &c, b, func(string) bool { return false }, func() {}); err != nil && !errors.Is(err, storetest.ErrNotDeclared) {
					failed = true
					named(t, &c, err)
				}
			}
			if !failed {
				t.Error("no check notices")
			}
		})
	}
}
