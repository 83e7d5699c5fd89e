package inboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

type (
	handler = func(ctx context.Context, tx *memory.Tx) error
	doFunc  = func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error)
)

// broken is an inbox with one fault: its Do.
type broken struct {
	*memory.Store
	do doFunc

	ahead atomic.Int64 // how far its clock is before that of the bubble
	loose bool         // writes after a lost transaction commit alone

	mu     sync.Mutex
	serial int
	seen   map[core.InboxKey]bool
	lost   map[*memory.Tx]bool
}

func (b *broken) Inbox() core.Inbox[*memory.Tx] { return b }

func (b *broken) Do(ctx context.Context, key core.InboxKey, fn handler) (core.InboxStatus, error) {
	return b.do(ctx, b, key, fn)
}

func (b *broken) Effect(_ context.Context, tx *memory.Tx, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	if b.loose && b.lost[tx] {
		apart := b.Begin()
		apart.Put(fmt.Sprint(name, "#", b.serial), "")
		return apart.Commit()
	}
	tx.Put(fmt.Sprint(name, "#", b.serial), "")
	return nil
}

func (b *broken) Effects(_ context.Context, name string) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for i := range b.serial {
		if _, ok := b.Get(fmt.Sprint(name, "#", i+1)); ok {
			n++
		}
	}
	return n, nil
}

func (b *broken) Break(_ context.Context, tx *memory.Tx) error {
	err := errors.New("constraint violated")
	tx.Fail(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost[tx] = true
	return err
}

func (b *broken) first(key core.InboxKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := b.seen[key]
	b.seen[key] = true
	return !again
}

func (b *broken) forget(key core.InboxKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.seen, key)
}

// apart runs fn in a transaction that is not the mark's.
func (b *broken) apart(ctx context.Context, fn handler) error {
	tx := b.Begin()
	defer tx.Rollback()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func good(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
	return b.Store.Do(ctx, key, fn)
}

// changedKey is an inbox that confuses keys.
func changedKey(change func(k *core.InboxKey)) doFunc {
	return func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
		change(&key)
		return b.Store.Do(ctx, key, fn)
	}
}

// markFirst marks in a transaction of its own before the handler runs.
func markFirst(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
	status, err := b.Store.Do(ctx, key, func(context.Context, *memory.Tx) error { return nil })
	if status != core.InboxNew {
		return status, err
	}
	if err := b.apart(ctx, fn); err != nil {
		return core.InboxNone, err
	}
	return core.InboxNew, nil
}

// markOf marks what failed with some errors.
func markOf(errs func(error) bool) doFunc {
	return func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
		status, err := b.Store.Do(ctx, key, fn)
		if err != nil && errs(err) {
			_, _ = b.Store.Do(ctx, key, func(context.Context, *memory.Tx) error { return nil })
		}
		return status, err
	}
}

// noWait marks in memory: the second of two concurrent calls is a duplicate at once.
func noWait(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
	if !b.first(key) {
		return core.InboxDuplicate, nil
	}
	status, err := b.Store.Do(ctx, key, fn)
	if err != nil {
		b.forget(key)
	}
	return status, err
}

// checkThenAct looks for the mark before the handler and writes it after.
func checkThenAct(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
	b.mu.Lock()
	again := b.seen[key]
	b.mu.Unlock()
	if again {
		return core.InboxDuplicate, nil
	}
	if err := b.apart(ctx, fn); err != nil {
		return core.InboxNone, err
	}
	b.first(key)
	return core.InboxNew, nil
}

var faults = []struct {
	name, check string
	do          doFunc
}{
	{
		"no mark", "mark-and-effect-commit-together",
		func(ctx context.Context, b *broken, _ core.InboxKey, fn handler) (core.InboxStatus, error) {
			return core.InboxNew, b.apart(ctx, fn)
		},
	},
	{
		"no effect", "mark-and-effect-commit-together",
		func(ctx context.Context, b *broken, key core.InboxKey, _ handler) (core.InboxStatus, error) {
			return b.Store.Do(ctx, key, func(context.Context, *memory.Tx) error { return nil })
		},
	},
	{
		"duplicates are called processed", "duplicate-does-not-run",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			_, err := b.Store.Do(ctx, key, fn)
			return core.InboxNew, err
		},
	},
	{"key without the source", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) { k.Source = "/" })},
	{"key without the consumer", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) { k.Consumer = "c" })},
	{"key is joined", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) {
		if len(k.Source)+len(k.ID) < 100 {
			k.Source, k.ID = "/", k.Source+k.ID
		}
	})},
	{"key is cut", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) { k.ID = k.ID[:1] })},
	{"bad keys are taken", "bad-key-is-refused", changedKey(func(k *core.InboxKey) {
		k.Consumer, k.Source, k.ID = k.Consumer+"c", "/", "1"
		k.Consumer = k.Consumer[:2]
	})},
	{"key without case", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) { k.ID = strings.ToLower(k.ID) })},
	{"consumer without case", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) { k.Consumer = strings.ToLower(k.Consumer) })},
	{"key without spaces", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) { k.Source = strings.TrimRight(k.Source, " ") })},
	{"key without accents", "key-is-consumer-source-and-id", changedKey(func(k *core.InboxKey) {
		k.ID = strings.NewReplacer("é", "e", "\u0301", "").Replace(k.ID)
	})},
	{"mark before the effect", "failure-leaves-no-mark", markFirst},
	{"mark is kept after an outage", "outage-leaves-no-mark", markOf(func(err error) bool { return waybill.ClassOf(err) == waybill.ClassOutage })},
	{"mark is kept after an ended context", "outage-leaves-no-mark", markOf(func(err error) bool { return errors.Is(err, context.Canceled) })},
	{"writes commit alone after a lost transaction", "lost-transaction-has-no-effect", func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
		b.loose = true
		return b.Store.Do(ctx, key, fn)
	}},
	{
		"handler gets a context of its own", "handler-context-has-its-values",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			return b.Store.Do(ctx, key, func(_ context.Context, tx *memory.Tx) error { return fn(context.Background(), tx) })
		},
	},
	{
		"forgets after a day", "mark-lasts",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			if _, err := b.PurgeInbox(ctx, "", 24*time.Hour, 1000); err != nil {
				return core.InboxNone, err
			}
			return b.Store.Do(ctx, key, fn)
		},
	},
	{"mark before the effect", "panic-leaves-no-mark", markFirst},
	{
		"the handler's error is lost", "failure-leaves-no-mark",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			status, err := b.Store.Do(ctx, key, fn)
			if err != nil {
				err = errors.New("failed")
			}
			return status, err
		},
	},
	{
		"a panic is swallowed", "panic-leaves-no-mark",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (status core.InboxStatus, err error) {
			defer func() { _ = recover() }()
			return b.Store.Do(ctx, key, fn)
		},
	},
	{
		"a failed commit is called processed", "ended-context-leaves-no-mark",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			status, err := b.Store.Do(ctx, key, fn)
			if errors.Is(err, context.Canceled) {
				return core.InboxNew, nil
			}
			return status, err
		},
	},
	{
		"the effect commits by itself", "effect-is-hidden-until-commit",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			return b.Store.Do(ctx, key, func(ctx context.Context, _ *memory.Tx) error {
				tx := b.Begin()
				time.AfterFunc(time.Millisecond, func() { _ = tx.Commit() })
				return fn(ctx, tx)
			})
		},
	},
	{"the second does not wait", "concurrent-duplicate-waits", noWait},
	{"both run", "concurrent-duplicate-waits", checkThenAct},
	{"the second is a duplicate of what fails", "concurrent-runs-after-rollback", noWait},
	{"both run", "storm-has-one-effect", checkThenAct},
	{"marks keep no hash", "other-content-is-a-conflict", changedKey(func(k *core.InboxKey) { k.ContentHash = "" })},
	{
		"the hash of the mark that is waited for is not read", "concurrent-content-is-a-conflict",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			if !b.first(key.WithoutHash()) {
				key.ContentHash = ""
			}
			return b.Store.Do(ctx, key, fn)
		},
	},
	{"one message at a time is kept", "different-keys-all-run", changedKey(func(k *core.InboxKey) { k.ID = "1" })},
	{
		"waits for ever", "waiting-heeds-its-context",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			return b.Store.Do(context.WithoutCancel(ctx), key, fn)
		},
	},
	{
		"a swallowed failure is processed", "swallowed-failure-is-a-failure",
		func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
			status, err := b.Store.Do(ctx, key, fn)
			if err != nil && waybill.ClassOf(err) == waybill.ClassUnknown {
				return core.InboxNew, nil
			}
			return status, err
		},
	},
}

// newBroken returns an inbox with a fault. It must be called in a bubble.
func newBroken(t *testing.T, do doFunc) *broken {
	t.Helper()
	b := &broken{do: do, seen: map[core.InboxKey]bool{}, lost: map[*memory.Tx]bool{}}
	s, err := memory.New(memory.Options{Source: "/test", Now: func() time.Time { return time.Now().Add(time.Duration(b.ahead.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	b.Store = s
	return b
}

func (b *broken) Disposable() bool { return true }

// Sleep makes the harness an inboxtest.Clock.
func (b *broken) Sleep(_ context.Context, d time.Duration) error {
	b.ahead.Add(int64(d))
	return nil
}

func runBroken(t *testing.T, name string, do doFunc) error {
	t.Helper()
	for _, c := range inboxtest.Checks[*memory.Tx]() {
		if c.Name != name {
			continue
		}
		var err error
		synctest.Test(t, func(t *testing.T) {
			b := newBroken(t, do)
			ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Timeout)
			defer cancel()
			err = c.Run(ctx, withTransactions{b, nil})
			time.Sleep(time.Hour) // lets go of what waits in vain
		})
		return err
	}
	t.Fatalf("no check is called %s", name)
	return nil
}

// Every fault is caught by the check that is there for it.
func TestSuiteCatchesFaults(t *testing.T) { // TE-01 TE-02 TE-06
	t.Parallel()
	for _, f := range faults {
		t.Run(f.check+"/"+f.name, func(t *testing.T) {
			t.Parallel()
			if err := runBroken(t, f.check, f.do); err == nil || errors.Is(err, inboxtest.ErrNotDeclared) {
				t.Errorf("the check does not notice: %v", err)
			}
		})
	}
}

// Each check is the one that some fault must be caught by.
func TestEveryCheckCatchesAFault(t *testing.T) { // TE-02 TE-06
	t.Parallel()
	caught := map[string]bool{}
	for _, f := range faults {
		caught[f.check] = true
	}
	for _, f := range capabilityFaults {
		caught[f.check] = true
	}
	for _, c := range inboxtest.Checks[*memory.Tx]() {
		if !caught[c.Name] {
			t.Errorf("no fault is there for check %s", c.Name)
		}
		delete(caught, c.Name)
	}
	for name := range caught {
		t.Errorf("no check is called %s", name)
	}
}

// An inbox may run a handler again, after it rolled the first run back.
func TestSuiteAcceptsReruns(t *testing.T) { // TE-01
	t.Parallel()
	for _, c := range inboxtest.Checks[*memory.Tx]() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			again := func(ctx context.Context, b *broken, key core.InboxKey, fn handler) (core.InboxStatus, error) {
				return b.Store.Do(ctx, key, func(ctx context.Context, tx *memory.Tx) error {
					first := b.Begin()
					err := fn(ctx, first)
					first.Rollback()
					if err != nil {
						return err
					}
					return fn(ctx, tx)
				})
			}
			if err := runBroken(t, c.Name, again); err != nil {
				t.Error(err)
			}
		})
	}
}

// An inbox without a fault has none.
func TestSuiteAcceptsGoodInbox(t *testing.T) { // TE-01
	t.Parallel()
	for _, c := range inboxtest.Checks[*memory.Tx]() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := runBroken(t, c.Name, good); err != nil {
				t.Error(err)
			}
		})
	}
}
