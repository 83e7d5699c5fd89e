package storetest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/memory"
)

// hostile is a store, and a harness, that asks spoils before each call. If it says yes the call answers nothing.
type hostile struct {
	*brokenOps
	spoils func(method string) bool
}

func (h *hostile) Store() core.OutboxStore { return h }

func (h *hostile) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	if h.spoils("Heartbeat") {
		return core.Membership{}, nil
	}
	return h.brokenOps.Heartbeat(ctx, m)
}

func (h *hostile) Read(ctx context.Context, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	if h.spoils("Read") {
		return core.ReadResult{}, nil
	}
	return h.brokenOps.Read(ctx, self, l)
}

func (h *hostile) Hold(ctx context.Context, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
	if h.spoils("Take") {
		return nil, nil
	}
	return h.brokenOps.Hold(ctx, self, w)
}

func (h *hostile) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	if h.spoils("Due") {
		return core.DueResult{}, nil
	}
	return h.brokenOps.Due(ctx, self, parts, limit)
}

func (h *hostile) Settle(ctx context.Context, self core.Session, os []core.Outcome) core.Results {
	if h.spoils("Settle") {
		return nil
	}
	return h.brokenOps.Settle(ctx, self, os)
}

func (h *hostile) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if h.spoils("Wait") {
		return "", nil
	}
	return h.brokenOps.Wait(ctx, routes, limit)
}

func (h *hostile) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	if h.spoils("Clean") {
		return core.Cleaned{}, nil
	}
	return h.brokenOps.Clean(ctx, owner, lease)
}

func (h *hostile) Counts(ctx context.Context) ([]admin.Count, error) {
	if h.spoils("Counts") {
		return nil, nil
	}
	return h.brokenOps.Counts(ctx)
}

func (h *hostile) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	if h.spoils("HighWater") {
		return 0, nil
	}
	return h.brokenOps.HighWater(ctx)
}

func (h *hostile) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	if h.spoils("Inspect") {
		return admin.Stored{}, nil
	}
	return h.brokenOps.Inspect(ctx, route, id)
}

func (h *hostile) List(ctx context.Context, f admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	if h.spoils("List") {
		return admin.Listing{}, nil
	}
	return h.brokenOps.List(ctx, f, p)
}

func (h *hostile) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	if h.spoils("Redrive") {
		return admin.Redriven{}, nil
	}
	return h.brokenOps.Redrive(ctx, req)
}

func (h *hostile) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	if h.spoils("PurgeRecords") {
		return admin.Purged{}, nil
	}
	return h.brokenOps.PurgeRecords(ctx, req)
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
	if h.spoils("Records") {
		return nil, nil
	}
	return h.brokenOps.Records(ctx, route)
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
	if t.h.spoils("Stage") {
		return nil, nil
	}
	return t.brokenTx.Stage(ctx, msgs...)
}

func (t *hostileTx) Cancel(ctx context.Context, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if t.h.spoils("Cancel") {
		return nil, nil
	}
	return t.brokenTx.Cancel(ctx, keys...)
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
		inner, errNew := memory.New(memory.Options{Source: "/test"})
		if errNew != nil {
			t.Fatal(errNew)
		}
		b.inner, b.mu, b.last, b.open = inner, new(sync.Mutex), map[int64]core.Record{}, new(atomic.Int32)
		ctx, cancel := context.WithTimeout(t.Context(), storetest.Timeout)
		defer cancel()
		start := time.Now()
		err = c.Run(ctx, &hostile{&brokenOps{broken: &b}, spoils})
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
		"more to clean for ever": {clean: func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
			done, err := b.inner.Clean(ctx, owner, lease)
			done.More = true
			return done, err
		}},
		"negative ages": {record: func(r *core.Record) { r.DueFor = -time.Hour }},
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
