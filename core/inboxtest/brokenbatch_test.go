package inboxtest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

// withTransactions is a harness with transactions of the caller's own, and with another inbox if box is not nil.
type withTransactions struct {
	*broken
	box core.Inbox[*memory.Tx]
}

func (h withTransactions) Inbox() core.Inbox[*memory.Tx] {
	if h.box != nil {
		return h.box
	}
	return h.broken.Inbox()
}

func (h withTransactions) Begin(context.Context) (*memory.Tx, func(context.Context, bool) error, error) {
	tx := h.Store.Begin()
	return tx, func(_ context.Context, commit bool) error {
		if commit {
			return tx.Commit()
		}
		tx.Rollback()
		return nil
	}, nil
}

type (
	all           struct{ *memory.Store }
	marksFirst    struct{ *memory.Store }
	noOrder       struct{ *memory.Store }
	marksFew      struct{ *memory.Store }
	marksApart    struct{ *memory.Store }
	purgesAll     struct{ *memory.Store }
	purgesTooMany struct{ *memory.Store }
	anyKey        struct{ *memory.Store }
	keepsMarks    struct{ *memory.Store }
	ownContext    struct{ *memory.Store }
	purgesYoung   struct{ *memory.Store }
	purgesNobody  struct{ *memory.Store }
	noHash        struct{ *memory.Store }

	marksElsewhere struct {
		*memory.Store
		elsewhere *memory.Store
	}
	batchFn = func(ctx context.Context, tx *memory.Tx, fresh []int) error
)

// DoBatch runs the handler for duplicates too.
func (a all) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	return a.Store.DoBatch(ctx, keys, func(ctx context.Context, tx *memory.Tx, _ []int) error {
		every := make([]int, len(keys))
		for i := range every {
			every[i] = i
		}
		return fn(ctx, tx, every)
	})
}

// DoBatch marks in a transaction of its own.
func (m marksFirst) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	var fresh []int
	statuses, err := m.Store.DoBatch(ctx, keys, func(_ context.Context, _ *memory.Tx, f []int) error { fresh = f; return nil })
	if err != nil || fresh == nil {
		return statuses, err
	}
	tx := m.Begin()
	defer tx.Rollback()
	if err := fn(ctx, tx, fresh); err != nil {
		return nil, err
	}
	return statuses, tx.Commit()
}

// DoBatch marks one after the other as they come, and gives up in a deadlock.
func (n noOrder) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	tx := n.Begin()
	defer tx.Rollback()
	statuses, fresh := make([]core.InboxStatus, len(keys)), []int(nil)
	for i, key := range keys {
		st, err := n.Mark(ctx, tx, key)
		if err != nil {
			return nil, errors.New(err.Error())
		}
		if statuses[i] = st; st == core.InboxNew {
			fresh = append(fresh, i)
		}
		time.Sleep(time.Millisecond)
	}
	if fresh == nil {
		return statuses, nil
	}
	if err := fn(ctx, tx, fresh); err != nil {
		return nil, err
	}
	return statuses, tx.Commit()
}

// DoBatch marks 500 keys at most, and takes the others for new.
func (m marksFew) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	const most = 500
	statuses, err := m.Store.DoBatch(ctx, keys[:min(len(keys), most)], func(ctx context.Context, tx *memory.Tx, fresh []int) error {
		for i := most; i < len(keys); i++ {
			fresh = append(fresh, i)
		}
		return fn(ctx, tx, fresh)
	})
	for range max(len(keys)-most, 0) {
		statuses = append(statuses, core.InboxNew)
	}
	return statuses, err
}

// Mark marks in a transaction of its own.
func (m marksApart) Mark(ctx context.Context, _ *memory.Tx, key core.InboxKey) (core.InboxStatus, error) {
	return m.Do(ctx, key, func(context.Context, *memory.Tx) error { return nil })
}

// PurgeInbox does not look at the consumer.
func (p purgesAll) PurgeInbox(ctx context.Context, _ string, age time.Duration, limit int) (int, error) {
	return p.Store.PurgeInbox(ctx, "", age, limit)
}

// PurgeInbox has no bound.
func (p purgesTooMany) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if limit > 0 {
		limit = 1000
	}
	return p.Store.PurgeInbox(ctx, consumer, age, limit)
}

// DoBatch marks in a store of its own, with which Do has nothing to do.
func (m marksElsewhere) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	tx := m.Begin()
	defer tx.Rollback()
	statuses, err := m.elsewhere.DoBatch(ctx, keys, func(ctx context.Context, _ *memory.Tx, fresh []int) error {
		return fn(ctx, tx, fresh)
	})
	return statuses, errors.Join(err, tx.Commit())
}

// DoBatch takes any key.
func (a anyKey) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	keys = slices.Clone(keys)
	for i := range keys {
		if core.CheckInboxKeys(keys[i]) != nil && keys[i].ID == "" {
			keys[i].ID = "-"
		}
	}
	return a.Store.DoBatch(ctx, keys, fn)
}

// DoBatch keeps the marks although the handler failed, if it did with an outage.
func (k keepsMarks) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	statuses, err := k.Store.DoBatch(ctx, keys, fn)
	if waybill.ClassOf(err) == waybill.ClassOutage {
		_, _ = k.Store.DoBatch(ctx, keys, func(context.Context, *memory.Tx, []int) error { return nil })
	}
	return statuses, err
}

// DoBatch gives the handler a context of its own.
func (o ownContext) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	return o.Store.DoBatch(ctx, keys, func(_ context.Context, tx *memory.Tx, fresh []int) error {
		return fn(context.Background(), tx, fresh)
	})
}

// PurgeInbox deletes marks from half the age on.
func (p purgesYoung) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	return p.Store.PurgeInbox(ctx, consumer, age/2, limit)
}

// PurgeInbox takes the empty consumer for a consumer.
func (p purgesNobody) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if consumer == "" {
		consumer = "-"
	}
	return p.Store.PurgeInbox(ctx, consumer, age, limit)
}

// DoBatch keeps no hashes.
func (n noHash) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = keys[i].WithoutHash()
	}
	return n.Store.DoBatch(ctx, keys, fn)
}

// Mark keeps no hash.
func (n noHash) Mark(ctx context.Context, tx *memory.Tx, key core.InboxKey) (core.InboxStatus, error) {
	return n.Store.Mark(ctx, tx, key.WithoutHash())
}

var capabilityFaults = []struct {
	name, check string
	box         func(*memory.Store) core.Inbox[*memory.Tx]
}{
	{"duplicates are handed on", "batch-skips-duplicates", func(s *memory.Store) core.Inbox[*memory.Tx] { return all{s} }},
	{"marks before the effects", "batch-failure-leaves-nothing", func(s *memory.Store) core.Inbox[*memory.Tx] { return marksFirst{s} }},
	{"marks in any order", "batches-do-not-deadlock", func(s *memory.Store) core.Inbox[*memory.Tx] { return noOrder{s} }},
	{"marks the first 500", "batch-of-thousands", func(s *memory.Store) core.Inbox[*memory.Tx] { return marksFew{s} }},
	{"marks apart", "mark-in-own-transaction", func(s *memory.Store) core.Inbox[*memory.Tx] { return marksApart{s} }},
	{"purges everybody's", "purge-deletes-old-marks", func(s *memory.Store) core.Inbox[*memory.Tx] { return purgesAll{s} }},
	{"purges without a bound", "purge-deletes-old-marks", func(s *memory.Store) core.Inbox[*memory.Tx] { return purgesTooMany{s} }},
	{"marks elsewhere", "batch-commits-together", elsewhere},
	{"marks elsewhere", "batch-waits-for-others", elsewhere},
	{"any key", "batch-refuses-bad-keys", func(s *memory.Store) core.Inbox[*memory.Tx] { return anyKey{s} }},
	{"marks of a batch are kept after an outage", "outage-leaves-no-mark", func(s *memory.Store) core.Inbox[*memory.Tx] { return keepsMarks{s} }},
	{"handler of a batch gets a context of its own", "handler-context-has-its-values", func(s *memory.Store) core.Inbox[*memory.Tx] { return ownContext{s} }},
	{"purges at half the age", "purge-keeps-young-marks", func(s *memory.Store) core.Inbox[*memory.Tx] { return purgesYoung{s} }},
	{"a batch keeps no hashes", "batch-tells-conflicts", func(s *memory.Store) core.Inbox[*memory.Tx] { return noHash{s} }},
	{"marks keep no hash", "mark-tells-conflicts", func(s *memory.Store) core.Inbox[*memory.Tx] { return noHash{s} }},
	{"purges nobody", "purge-of-all-consumers", func(s *memory.Store) core.Inbox[*memory.Tx] { return purgesNobody{s} }},
}

func elsewhere(s *memory.Store) core.Inbox[*memory.Tx] {
	other, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		panic(err)
	}
	return marksElsewhere{s, other}
}

// Every fault of a capability is caught by the check that is there for it. IN-05, IN-08, IN-09.
func TestSuiteCatchesFaultsOfCapabilities(t *testing.T) { // TE-06
	t.Parallel()
	for _, f := range capabilityFaults {
		t.Run(f.check+"/"+f.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range inboxtest.Checks[*memory.Tx]() {
				if c.Name != f.check {
					continue
				}
				var err error
				synctest.Test(t, func(t *testing.T) {
					b := newBroken(t, good)
					ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Timeout)
					defer cancel()
					err = c.Run(ctx, withTransactions{b, f.box(b.Store)})
					time.Sleep(time.Hour)
				})
				if err == nil || errors.Is(err, inboxtest.ErrNotDeclared) {
					t.Errorf("the check does not notice: %v", err)
				}
				return
			}
			t.Fatalf("no check is called %s", f.check)
		})
	}
}
