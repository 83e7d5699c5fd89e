package consumer_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// CO-05: some messages always meet an outage, at the head or at any place of the queue, with any number of messages
// sent ahead. The others are handled, the later ones, too, and the bad ones are parked after Options.OutageLimit.
func TestOutagesOfFewAtRandom(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, rt *rapid.T, _ uint64, batch bool) {
		t.Helper()
		patience.BudgetOf(t).Time(time.Hour, "the limit of a message's own outages is ten minutes")
		patience.BudgetOf(t).Calls(1000, "pauses of 20 ms")
		ms := func(name string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, name)) * time.Millisecond
		}
		f := &far{bus: declared(t), trip: ms("trip", 5)}
		f.dueFirst = rapid.Bool().Draw(rt, "due first")
		var came sync.Map // some brokers say that a message came before, others not
		if counts := rapid.Bool().Draw(rt, "counts"); counts {
			f.redeliver = func(d *waybill.Delivery) {
				if _, before := came.LoadOrStore(d.Envelope.ID, true); before {
					d.Redeliveries = 1
				}
			}
		}
		var on core.Subscriber = f
		ahead := rapid.Bool().Draw(rt, "ahead")
		if ahead {
			on = &sending{f}
		}
		work, fails := ms("work", 50), ms("fails", 50)
		o := consumer.Options{
			Concurrency: rapid.IntRange(1, 8).Draw(rt, "concurrency"), Prefetch: rapid.SampledFrom([]int{0, 0, 8, 20}).Draw(rt, "prefetch"), OutageLimit: 10 * time.Minute,
			Pause: waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100*time.Millisecond + ms("cap", 900)},
		}
		var good sync.Map
		handled := func() (n int) {
			good.Range(func(any, any) bool { n++; return true })
			return n
		}
		h := of(batch, func(d *waybill.Delivery) error {
			if strings.HasPrefix(d.Envelope.ID, "bad") {
				travel(fails)
				return waybill.Outage(errBoom)
			}
			travel(work)
			good.Store(d.Envelope.ID, true)
			return nil
		})
		bad, head := rapid.IntRange(1, 30).Draw(rt, "bad"), rapid.Bool().Draw(rt, "head")
		first := rapid.IntRange(0, 30).Draw(rt, "first")
		es := messages(first)
		for i := range bad {
			e := messages(1, waybill.ID(fmt.Sprint("bad-", i)))
			at := i
			if !head {
				at = rapid.IntRange(0, len(es)).Draw(rt, "at")
			}
			es = append(es[:at:at], append(e, es[at:]...)...)
		}
		stop := start(t, on, o, waybill.Subscription{}, h)
		defer stop()
		f.send(t, es...)
		rest := 0
		for range 3 {
			patience.Pass(t, ms("pause", 2000))
			n := rapid.IntRange(1, 10).Draw(rt, "more")
			more := messages(n)
			for i := range more {
				more[i].ID = fmt.Sprint("later-", rest+i)
			}
			rest += n
			f.send(t, more...)
		}
		patience.Pass(t, 5*time.Minute)
		if n := handled(); n != first+rest {
			t.Errorf("%d of %d were handled within 5 minutes", n, first+rest)
		}
		patience.Pass(t, 20*time.Minute)
		f.send(t, messages(1, waybill.ID("last"))...)
		patience.Pass(t, 5*time.Minute)
		if n := len(f.Parked(queue)); n != bad || handled() != first+rest+1 {
			t.Errorf("%d of %d are parked, %d of %d handled", n, bad, handled(), first+rest+1)
		}
		if d := f.Depth(queue); d != (memtransport.Depth{Parked: bad}) {
			t.Errorf("depth is %+v", d)
		}
	})
}
