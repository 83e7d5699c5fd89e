package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
)

// CO-16, OR-06, OR-07: a reaction staged in the handler's transaction carries a later stamp than its cause, even if the
// cause comes from a machine whose clock is ahead; a forged stamp changes nothing.
func TestReactionsAreLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		clock, err := hlc.NewClock(hlc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store, err := memory.New(memory.Options{Source: "/reactor", Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		box, err := inbox.New(store, "reactor", inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, b, consumer.Options{Clock: clock, Concurrency: 1}, waybill.Subscription{}, inbox.Handler(box, topic,
			func(ctx context.Context, tx *memory.Tx, _ note) error {
				_, err := store.Stage(ctx, tx, topic.Message(note{}))
				return err
			}))
		es := messages(2)
		ahead := func(d time.Duration) hlc.Timestamp {
			ts, err := hlc.New(time.Now().Add(d).UnixMilli(), 7)
			if err != nil {
				t.Fatal(err)
			}
			return ts
		}
		es[0].HLC, es[1].HLC = ahead(30*time.Second), ahead(time.Hour)
		b.send(t, es...)
		settle()
		stop()
		got := store.Records()
		if len(got) != 2 || got[0].State != core.StatePending || got[1].State != core.StatePending {
			t.Fatalf("staged: %v", got)
		}
		first, second := got[0].Envelope, got[1].Envelope
		if first.CausationID != "id-1" || !first.HLC.After(es[0].HLC) {
			t.Errorf("the reaction to %s (%s) is stamped %s, its cause %s", es[0].ID, first.CausationID, first.HLC, es[0].HLC)
		}
		if second.CausationID != "id-2" || !second.HLC.Before(ahead(time.Minute)) {
			t.Errorf("the reaction to the forged stamp %s is stamped %s", es[1].HLC, second.HLC)
		}
		if clock.Rejected() != 1 {
			t.Errorf("%d stamps rejected, want 1", clock.Rejected())
		}
	})
}
