package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

var topic = waybill.NewTopic("orders.placed", waybill.JSON[int]())

// system is a store, a transport and the engines between them, in a bubble.
type system struct {
	store   *memory.Store
	handled int
}

const orders = 20

// run stages orders and waits until all of them have had their effect, through the faults of the scripts.
func (s *system) run(t *testing.T, store, bus, box faults.Script) {
	t.Helper()
	mem, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	s.store = mem
	r, err1 := relay.New(faults.Store(mem, counted(t, store)), faults.Publisher(tr, bus), relay.Options{Logger: quiet, BatchSize: 3})
	c, err2 := consumer.New(faults.Subscriber(tr, counted(t, bus)), consumer.Options{Logger: quiet, Retry: waybill.RetryDelays(time.Second, time.Second, time.Second)})
	b, err3 := inbox.New(faults.Inbox[*memory.Tx](mem, box), "billing", inbox.Options{Logger: quiet})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	err = c.Handle(waybill.Subscription{Queue: "q"}, inbox.Handler(b, topic, func(_ context.Context, tx *memory.Tx, v int) error {
		s.handled++
		tx.Put(fmt.Sprintf("order/%d", v), "billed")
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- waybill.Run(ctx, r, c) }()
	for i := range orders {
		tx := mem.Begin()
		if _, err := mem.Stage(ctx, tx, topic.Message(i, waybill.Key("k"))); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	healed := func() bool {
		if len(mem.Records()) > 0 {
			return false
		}
		for i := range orders {
			if v, _ := mem.Get(fmt.Sprintf("order/%d", i)); v != "billed" {
				return false
			}
		}
		return true
	}
	end := time.Now().Add(10 * time.Minute)
	for range 6000 {
		if healed() {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	patience.Pass(t, time.Until(end)) // for what comes twice or too late
	synctest.Wait()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for i := range orders {
		if v, _ := mem.Get(fmt.Sprintf("order/%d", i)); v != "billed" {
			t.Errorf("order %d has no effect", i)
		}
	}
	if left := len(mem.Records()); left > 0 {
		t.Errorf("%d records are left", left)
	}
}

// counted is a script that counts the calls for the budget of the test.
func counted(t *testing.T, script faults.Script) faults.Script {
	t.Helper()
	count := patience.BudgetOf(t).Counter()
	return func(c faults.Call) faults.Fault {
		count(c.Op)
		return script(c)
	}
}

// TE-03: each kind of fault at each step, and the system heals.
func TestFaultsAtEachStep(t *testing.T) {
	t.Parallel()
	none := func(faults.Call) faults.Fault { return faults.Fault{} }
	for _, kind := range []struct {
		name  string
		fault faults.Fault
	}{
		{"before", faults.Fault{Before: faults.Lost}},
		{"after", faults.Fault{After: faults.Lost}},
		{"delay", faults.Fault{Delay: time.Second}},
		{"hang", faults.Fault{Hang: true}},
	} {
		for _, op := range []string{"heartbeat", "read", "settle", "publish", "receive", "do"} {
			if kind.fault.Hang && (op == "do" || op == "receive") {
				continue // a handler, and a receive without messages, may take as long as they like
			}
			t.Run(op+" "+kind.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					if kind.fault.Hang {
						patience.BudgetOf(t).Time(95*time.Second, "three calls, each ends by its timeout of half a minute")
					}
					broken, first := 0, 2
					if op == "settle" {
						first = 1 // all that was read at once is settled at once
					}
					script := func(c faults.Call) faults.Fault {
						f := faults.On(op, first, 4, kind.fault)(c)
						if f != (faults.Fault{}) {
							broken++
						}
						return f
					}
					scripts := map[string][3]faults.Script{
						"publish": {none, script, none}, "receive": {none, script, none}, "do": {none, none, script},
					}[op]
					if scripts[0] == nil {
						scripts = [3]faults.Script{script, none, none}
					}
					var s system
					s.run(t, scripts[0], scripts[1], scripts[2])
					if broken == 0 {
						t.Error("nothing was broken")
					}
					if kind.name == "after" && (op == "publish" || op == "do") && s.handled < orders {
						t.Errorf("%d handled", s.handled)
					}
				})
			})
		}
	}
}

// TE-03: a settle whose answer says that the lease is lost, a member whose renewals fail for longer than its lease, and
// a clock that is wrong.
func TestLeasesAndClocks(t *testing.T) {
	t.Parallel()
	none := func(faults.Call) faults.Fault { return faults.Fault{} }
	t.Run("delivery lost", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t)
			var s system
			s.run(t, none, faults.On("settle", 1, 3, faults.Fault{After: waybill.ErrLeaseLost}), none)
		})
	})
	t.Run("lease of a relay over", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t)
			begun := time.Now()
			var s system
			s.run(t, func(c faults.Call) faults.Fault {
				if c.Op == "heartbeat" && time.Since(begun) > time.Second && time.Since(begun) < time.Minute {
					return faults.Fault{Before: faults.Lost}
				}
				return faults.Fault{}
			}, none, none)
		})
	})
	now := time.Now()
	if got := faults.Skew(func() time.Time { return now }, -time.Hour)(); !got.Equal(now.Add(-time.Hour)) {
		t.Errorf("the clock says %s", got)
	}
}

// Capabilities stay visible, and the first script that breaks a call wins.
func TestDecoratorsHideNothing(t *testing.T) {
	t.Parallel()
	mem, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	s := faults.Store(mem, faults.All(faults.On("read", 1, 1, faults.Fault{Before: faults.Lost}), faults.On("read", 1, 2, faults.Fault{Before: context.Canceled})))
	if _, ok := core.As[core.Waiter](s); !ok {
		t.Error("the Waiter is hidden")
	}
	for i, want := range []error{faults.Lost, context.Canceled, nil} {
		if _, err := s.Read(t.Context(), 1, core.ReadRequest{}); !errors.Is(err, want) {
			t.Errorf("read %d: %v, want %v", i+1, err, want)
		}
	}
	if waybill.ClassOf(faults.Lost) != waybill.ClassOutage {
		t.Error("a lost answer is no outage")
	}
}
