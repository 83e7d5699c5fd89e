package waybill_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/memory"
)

// counting counts the calls of Stage and keeps the staged messages.
type counting struct {
	waybill.Stager[*memory.Tx]
	calls []int
	fail  error
}

func (c *counting) Stage(ctx context.Context, tx *memory.Tx, msgs ...waybill.Message) ([]waybill.Staged, error) {
	c.calls = append(c.calls, len(msgs))
	if c.fail != nil {
		return nil, c.fail
	}
	return c.Stager.Stage(ctx, tx, msgs...)
}

type bench struct {
	store  *memory.Store
	stager *counting
	unit   *waybill.UnitOfWork[*memory.Tx]
	rerun  int   // how often a transaction is run anew
	broken error // what commits return instead
}

func newBench(tb testing.TB) *bench {
	tb.Helper()
	s, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		tb.Fatal(err)
	}
	b := &bench{store: s, stager: &counting{Stager: s}}
	b.unit, err = waybill.NewUnitOfWork(b.stager, func(ctx context.Context, fn func(ctx context.Context, tx *memory.Tx) error) error {
		for ; ; b.rerun-- {
			if err := b.run(func(tx *memory.Tx) error { return fn(ctx, tx) }); err != nil || b.rerun == 0 {
				return err
			}
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func (b *bench) run(fn func(tx *memory.Tx) error) error {
	tx := b.store.Begin()
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	return b.commit(tx)
}

// commit commits unless the function is to be run again.
func (b *bench) commit(tx *memory.Tx) error {
	if b.rerun > 0 {
		return nil
	}
	if b.broken != nil {
		return b.broken
	}
	return tx.Commit()
}

// topics returns the topics of the stored records, in order.
func (b *bench) topics() []string {
	var out []string
	for _, r := range b.store.Records() {
		out = append(out, r.Envelope.Topic)
	}
	return out
}

func event(topic string) waybill.Message { return waybill.RawMessage(topic, "text/plain", nil) }

func TestUnitOfWorkStagesOnceBeforeCommit(t *testing.T) { // ST-03
	t.Parallel()
	b := newBench(t)
	err := b.unit.Do(waybill.WithTenant(t.Context(), "outer"), func(ctx context.Context, tx *memory.Tx) error {
		tx.Put("order", "1")
		if err := b.unit.Stage(ctx, event("a"), event("b")); err != nil {
			return err
		}
		var wg sync.WaitGroup
		for range 10 { // code that runs beside
			wg.Go(func() {
				if err := b.unit.Stage(waybill.WithTenant(ctx, "inner"), event("c")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(b.stager.calls) > 0 {
			t.Error("it staged before the end")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.stager.calls, []int{12}) {
		t.Errorf("calls of Stage: %v, want one with 12 messages", b.stager.calls)
	}
	for i, r := range b.store.Records() {
		if want := map[bool]string{true: "outer", false: "inner"}[i < 2]; r.Envelope.Tenant != want {
			t.Errorf("message %d has tenant %q, want %q", i, r.Envelope.Tenant, want)
		}
	}
	if v, _ := b.store.Get("order"); v != "1" || len(b.topics()) != 12 {
		t.Errorf("order %q, %d messages", v, len(b.topics()))
	}
	if err := b.unit.Do(t.Context(), func(context.Context, *memory.Tx) error { return nil }); err != nil || len(b.stager.calls) != 1 {
		t.Errorf("a unit of work that staged nothing: %v, %v", err, b.stager.calls)
	}
}

func TestUnitOfWorkRollsBack(t *testing.T) { // ST-03
	t.Parallel()
	no := errors.New("no")
	for name, tc := range map[string]struct {
		prepare func(b *bench)
		fn      func(ctx context.Context, b *bench) error
		want    error
	}{
		"the function fails": {fn: func(context.Context, *bench) error { return no }, want: no},
		"staging fails": {
			prepare: func(b *bench) { b.stager.fail = no },
			fn:      func(context.Context, *bench) error { return nil }, want: no,
		},
		"a message is bad": {fn: func(ctx context.Context, b *bench) error {
			return b.unit.Stage(ctx, event("not*a topic"))
		}, want: waybill.ErrInvalid},
		"a nested one fails, and nobody looks": {fn: func(ctx context.Context, b *bench) error {
			_ = b.unit.Do(ctx, func(context.Context, *memory.Tx) error { return no })
			return nil
		}, want: no},
		"a nested one panics, and somebody recovers": {fn: func(ctx context.Context, b *bench) error {
			defer func() { _ = recover() }()
			return b.unit.Do(ctx, func(context.Context, *memory.Tx) error { panic("no") })
		}},
	} {
		b := newBench(t)
		if tc.prepare != nil {
			tc.prepare(b)
		}
		err := b.unit.Do(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
			tx.Put("order", "1")
			if err := b.unit.Stage(ctx, event("a")); err != nil {
				return err
			}
			return tc.fn(ctx, b)
		})
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
		if v, ok := b.store.Get("order"); ok || len(b.topics()) > 0 {
			t.Errorf("%s: order %q, messages %v, want none", name, v, b.topics())
		}
	}
}

func TestUnitOfWorkOutsideOfTransaction(t *testing.T) { // ST-03 ST-16
	t.Parallel()
	b, other := newBench(t), newBench(t)
	if err := b.unit.Stage(t.Context(), event("a")); !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "Do") {
		t.Errorf("outside: %v", err)
	}
	var kept context.Context
	if err := b.unit.Do(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
		kept = ctx //nolint:fatcontext // to use it after its time
		if err := other.unit.Stage(ctx, event("a")); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("another unit of work: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.unit.Stage(kept, event("a")); !errors.Is(err, waybill.ErrClosed) || !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("after the end: %v", err)
	}
	if err := b.unit.Do(kept, func(context.Context, *memory.Tx) error { t.Error("it ran"); return nil }); !errors.Is(err,
		waybill.ErrClosed) {
		t.Errorf("nested after the end: %v", err)
	}
	var nilStore *memory.Store
	_, err := waybill.NewUnitOfWork[*memory.Tx](nilStore, nil)
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "stager: ") || !strings.Contains(err.Error(), "transact: ") {
		t.Errorf("nothing: %v", err)
	}
}

func TestNestedUnitOfWorkJoins(t *testing.T) { // ST-03
	t.Parallel()
	b := newBench(t)
	err := b.unit.Do(t.Context(), func(ctx context.Context, outer *memory.Tx) error {
		return errors.Join(b.unit.Stage(ctx, event("a")), b.unit.Do(ctx, func(ctx context.Context, inner *memory.Tx) error {
			if inner != outer {
				t.Error("the nested one has a transaction of its own")
			}
			return b.unit.Stage(ctx, event("b"))
		}), b.unit.Stage(ctx, event("c")))
	})
	if err != nil || !slices.Equal(b.topics(), []string{"a", "b", "c"}) || len(b.stager.calls) != 1 {
		t.Errorf("%v, %v, %v", err, b.topics(), b.stager.calls)
	}
}

// A transaction that the database has run anew stages what the last run staged, once.
func TestUnitOfWorkThatIsRunAgain(t *testing.T) { // ST-03 ST-14
	t.Parallel()
	b := newBench(t)
	b.rerun = 2
	var o purchase
	o.Record(event("r"))
	runs := 0
	err := b.unit.Do(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
		runs++
		return errors.Join(b.unit.Stage(ctx, event(fmt.Sprint("run", runs))), b.unit.StageRecorded(ctx, &o))
	})
	if err != nil || !slices.Equal(b.topics(), []string{"run3", "r"}) || len(o.Recorded()) != 0 {
		t.Errorf("%v, stored %v, still recorded %d", err, b.topics(), len(o.Recorded()))
	}
}

func TestUnitOfWorkSplitsWhatIsTooMuchForOneCall(t *testing.T) { // ST-03 ST-15
	t.Parallel()
	b := newBench(t)
	err := b.unit.Do(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
		return b.unit.Stage(ctx, manyEvents(waybill.MaxMessages+1)...)
	})
	if err != nil || !slices.Equal(b.stager.calls, []int{waybill.MaxMessages, 1}) {
		t.Errorf("%v, %v", err, b.stager.calls)
	}
}

func manyEvents(n int) []waybill.Message {
	msgs := make([]waybill.Message, n)
	for i := range msgs {
		msgs[i] = event("many")
	}
	return msgs
}

// purchase is an aggregate.
type purchase struct {
	waybill.Recorder
	ID string
}

func TestRecorderKeepsUntilCommit(t *testing.T) { // ST-14
	t.Parallel()
	b, began := newBench(t), time.Now().Truncate(time.Second)
	o, p := &purchase{ID: "1"}, &purchase{ID: "2"}
	o.Record(event("o1"), event("o2"))
	p.Record(event("p1"))
	ids := []string{o.Recorded()[0].ID, o.Recorded()[1].ID, p.Recorded()[0].ID}
	do := func() error {
		return b.unit.Do(waybill.WithTenant(t.Context(), "t"), func(ctx context.Context, _ *memory.Tx) error {
			return b.unit.StageRecorded(ctx, o, p, o)
		})
	}
	b.broken = errors.New("connection lost")
	if err := do(); !errors.Is(err, b.broken) || len(o.Recorded()) != 2 || len(p.Recorded()) != 1 {
		t.Fatalf("%v, recorded %d and %d", err, len(o.Recorded()), len(p.Recorded()))
	}
	b.broken = nil
	o.Record(event("o3"))
	if err := do(); err != nil || !slices.Equal(b.topics(), []string{"o1", "o2", "o3", "p1"}) {
		t.Fatalf("%v, stored %v", err, b.topics())
	}
	for i, r := range []int{0, 1, 3} {
		rec := b.store.Records()[r]
		if rec.Envelope.ID != ids[i] || rec.Envelope.Tenant != "t" || rec.Envelope.Time.Before(began) {
			t.Errorf("message %d: id %q, tenant %q, at %s", r, rec.Envelope.ID, rec.Envelope.Tenant, rec.Envelope.Time)
		}
	}
	if len(o.Recorded())+len(p.Recorded()) != 0 {
		t.Error("what was committed is still recorded")
	}
	if err := do(); err != nil || len(b.topics()) != 4 {
		t.Errorf("once more: %v, %v", err, b.topics())
	}
	if text, err := json.Marshal(o); err != nil || string(text) != `{"ID":"1"}` {
		t.Errorf("as JSON: %s, %v", text, err)
	}
	var none *purchase
	if err := b.unit.Do(t.Context(), func(ctx context.Context,
		_ *memory.Tx,
	) error {
		return b.unit.StageRecorded(ctx, none)
	}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("no aggregate: %v", err)
	}
}

func TestStageRecorded(t *testing.T) { // ST-14
	t.Parallel()
	b := newBench(t)
	o, p := &purchase{}, &purchase{}
	o.Record(event("o1"))
	p.Record(event("p1"))
	for _, commit := range []bool{false, true} {
		tx := b.store.Begin()
		staged, err := waybill.StageRecorded(t.Context(), b.stager, tx, p, o)
		if err != nil || len(staged) != 2 || staged[0].Duplicate {
			t.Fatalf("%+v, %v", staged, err)
		}
		if !commit {
			tx.Rollback()
			continue
		}
		o.Record(event("o2")) // after it was staged
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		waybill.ForgetRecorded(o, p)
	}
	if got := b.topics(); !slices.Equal(got, []string{"p1", "o1"}) || len(b.stager.calls) != 2 {
		t.Errorf("stored %v in %d calls", got, len(b.stager.calls))
	}
	if r := o.Recorded(); len(r) != 1 || r[0].Topic != "o2" || len(p.Recorded()) != 0 {
		t.Errorf("still recorded: %v, %v", r, p.Recorded())
	}
	if staged, err := waybill.StageRecorded(t.Context(), b.stager, b.store.Begin(), p); staged != nil || err != nil ||
		len(b.stager.calls) != 2 {
		t.Errorf("nothing recorded: %v, %v", staged, err)
	}
}

// TestUnitOfWorkContext: a driver may keep its transaction in the context that it gives to the function.
//
// ST-03
func TestUnitOfWorkContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	type session struct{}
	unit, err := waybill.NewUnitOfWork(&inSession{b.stager, session{}},
		func(ctx context.Context, fn func(ctx context.Context, tx *memory.Tx) error) error {
			return b.run(func(tx *memory.Tx) error { return fn(context.WithValue(ctx, session{}, true), tx) })
		})
	if err != nil {
		t.Fatal(err)
	}
	err = unit.Do(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
		if ctx.Value(session{}) == nil {
			t.Error("the function does not get the context of the transaction")
		}
		return unit.Stage(ctx, waybill.RawMessage("t", "", nil))
	})
	if err != nil {
		t.Error(err)
	}
}

// inSession stages only under a context that holds key.
type inSession struct {
	waybill.Stager[*memory.Tx]
	key any
}

func (s *inSession) Stage(ctx context.Context, tx *memory.Tx, msgs ...waybill.Message) ([]waybill.Staged, error) {
	if ctx.Value(s.key) == nil {
		return nil, errors.New("staged outside of the session")
	}
	return s.Stager.Stage(ctx, tx, msgs...)
}
