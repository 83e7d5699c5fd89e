package memory_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// msg returns a message of the kit's route.
func msg(id string, opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage("t", "", []byte("body"), append([]waybill.MessageOption{waybill.ID(id), waybill.Routes(route)}, opts...)...)
}

// stage stages messages in a transaction of their own.
func (k *kit) stage(msgs ...waybill.Message) []waybill.Staged {
	k.Helper()
	return stage(k.TB, k.Store, msgs...)
}

// cancel cancels in a transaction of its own.
func (k *kit) cancelRecord(keys ...waybill.CancelKey) []waybill.CancelStatus {
	k.Helper()
	tx := k.Begin()
	got, err := k.Cancel(k.Context(), tx, keys...)
	k.no(err)
	k.no(tx.Commit())
	return got
}

func byID(id string) waybill.CancelKey { return waybill.CancelKey{Route: route, ID: id} }

func byDedupe(key string) waybill.CancelKey {
	return waybill.CancelKey{Route: route, Topic: "t", DedupeKey: key}
}

func TestStagerCancels(t *testing.T) { // ST-08 ST-09
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.stage(msg("a"), msg("b", waybill.DedupeKey("b")), msg("c", waybill.Delay(time.Hour)), msg("d", waybill.DedupeKey("d")), msg("e"))
	k.hold(1, k.get(1, "d"))
	k.retry("e", time.Hour)
	got := k.cancelRecord(byID("a"), byDedupe("b"), byID("b"), byID("c"), byDedupe("d"), byID("d"), byID("e"), byID("z"), byDedupe("z"))
	want := []waybill.CancelStatus{
		waybill.CancelInFlight, waybill.CancelDone, waybill.CancelDone, waybill.CancelDone, waybill.CancelInFlight, waybill.CancelInFlight, waybill.CancelDone,
		waybill.CancelNotFound, waybill.CancelNotFound,
	}
	k.fact("answers", slices.Equal(got, want))
	k.fact("what is left", len(k.Records()) == 2 && k.Records()[1].State == core.StateProcessing)
	_, err := k.Cancel(t.Context(), k.Begin(), waybill.CancelKey{Route: route})
	k.is("a key that names nothing", err, waybill.ErrInvalid)
}

func TestStagerReplaces(t *testing.T) { // ST-10
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	replace := func(id string) waybill.Staged { return k.stage(msg(id, waybill.Replace("k"), waybill.Key("x")))[0] }
	k.fact("nothing", replace("a").Replaced == waybill.CancelNotFound)
	k.fact("a due one", replace("b").Replaced == waybill.CancelDone)
	k.fact("its owner is told", len(k.look(1, core.ReadRequest{Slots: []core.RouteSlots{all}}).Notices) == 1)
	k.fact("a duplicate", k.stage(msg("c", waybill.DedupeKey("k")))[0] == waybill.Staged{ID: "b", Route: route, Duplicate: true})
	b := k.get(1, "b")
	k.hold(1, b)
	k.fact("one in flight", replace("d").Replaced == waybill.CancelInFlight)
	k.same("both live", ids(k.read(1)), []string{"b", "d"})
	k.no(k.settle(1, core.Release(b, 0, true))[0])
	k.fact("the key is the newer one's", k.stage(msg("e", waybill.DedupeKey("k")))[0].ID == "d")
	k.no(k.settle(1, core.Published(k.get(1, "d")))[0])
	k.fact("it is free", !k.stage(msg("f", waybill.DedupeKey("k")))[0].Duplicate)
}

func TestStagerInATransaction(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.stage(msg("a", waybill.DedupeKey("k")))
	tx := k.Begin()
	stage := func(m waybill.Message) waybill.Staged {
		got, err := k.Stage(t.Context(), tx, m)
		k.no(err)
		return got[0]
	}
	sp := tx.Savepoint()
	k.fact("replaced", stage(msg("b", waybill.Replace("k"))).Replaced == waybill.CancelDone)
	k.fact("its own", stage(msg("a", waybill.Replace("k"))).Replaced == waybill.CancelDone)
	k.fact("the id of what it has cancelled is free", stage(msg("a")).Duplicate)
	st, err := k.Cancel(t.Context(), tx, byDedupe("k"), byID("a"))
	k.fact("gone", err == nil && st[0] == waybill.CancelDone && st[1] == waybill.CancelDone)
	k.fact("staged anew", !stage(msg("c", waybill.DedupeKey("k"))).Duplicate)
	k.no(tx.RollbackTo(sp))
	k.fact("as before", stage(msg("d", waybill.DedupeKey("k"))).ID == "a")
	k.fact("replaced for good", stage(msg("a", waybill.Replace("k"))).Duplicate)
	k.fact("by another", stage(msg("e", waybill.Replace("k"))).Replaced == waybill.CancelDone)
	k.fact("by its own id", stage(msg("a", waybill.Replace("k"))).Replaced == waybill.CancelDone)
	k.no(tx.Commit())
	k.same("one is left", ids(k.read(1)), []string{"a"})
	k.fact("it is the new one", k.get(1, "a").Seq > 1)
}

// TestStagerWaits: the second of two transactions that want the same waits for the first.
func TestStagerWaits(t *testing.T) { // ST-05 ST-08 ST-09
	t.Parallel()
	for name, second := range map[string]func(ctx context.Context, s *memory.Store, tx *memory.Tx) error{
		"id": func(ctx context.Context, s *memory.Store, tx *memory.Tx) error {
			return one(s.Stage(ctx, tx, msg("a")))
		},
		"dedupe key": func(ctx context.Context, s *memory.Store, tx *memory.Tx) error {
			return one(s.Stage(ctx, tx, msg("x", waybill.DedupeKey("k"))))
		},
		"cancelled": func(ctx context.Context, s *memory.Store, tx *memory.Tx) error {
			return one(s.Cancel(ctx, tx, byID("old")))
		},
		"replaced": func(ctx context.Context, s *memory.Store, tx *memory.Tx) error {
			return one(s.Stage(ctx, tx, msg("y", waybill.Replace("o"))))
		},
		"vacated id": func(ctx context.Context, s *memory.Store, tx *memory.Tx) error {
			return one(s.Stage(ctx, tx, msg("old")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t)
				s := newStore(t)
				stage(t, s, msg("old", waybill.DedupeKey("o")))
				first, other := s.Begin(), s.Begin()
				if err := one(s.Stage(t.Context(), first, msg("a", waybill.DedupeKey("k")))); err != nil {
					t.Fatal(err)
				}
				if err := one(s.Cancel(t.Context(), first, byID("old"))); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				lost := s.Begin()
				if err := second(ctx, s, lost); waybill.ClassOf(err) != waybill.ClassOutage || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it did not wait: %v", err)
				}
				if err := lost.Commit(); err == nil {
					t.Error("a transaction in which a statement had failed was committed")
				}
				done := make(chan error, 1)
				go func() { done <- second(t.Context(), s, other) }()
				synctest.Wait()
				if len(done) > 0 {
					t.Error("it did not wait")
				}
				first.Rollback()
				if err := <-done; err != nil {
					t.Error(err)
				}
				other.Rollback()
			})
		})
	}
}

func one[T any](_ []T, err error) error { return err }
