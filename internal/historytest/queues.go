package historytest

import (
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
)

// Queues are queues in memory, one for each route of a history, behind a broker that fails.
type Queues struct {
	w      *World
	queues map[string]*checker.Queue
	bus    checker.Faults

	mu  sync.Mutex
	got []arrival
}

// arrival is a message that has come to the queue of a route.
type arrival struct{ route, source, id string }

// NewQueues returns empty queues.
func (w *World) NewQueues() *Queues {
	rate := w.Faults.Before
	q := &Queues{w: w, queues: map[string]*checker.Queue{}, bus: checker.Faults{
		Before: rate, After: rate, Late: rate, Partial: rate, Delay: rate, MaxDelay: time.Second, Reject: w.Refuse,
	}}
	traits := core.PublisherTraits{Confirmed: true, DetectsUnroutable: true, KeyOrder: core.KeyOrderSerial}
	for _, r := range w.Names {
		q.queues[r] = checker.NewQueue(w.Ledger, r, traits, func(e waybill.Envelope) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.got = append(q.got, arrival{r, e.Source, e.ID})
		})
	}
	return q
}

// Relay runs relay n in this process, over a store of its own and these queues. done is called when it has ended.
func (q *Queues) Relay(n int, store core.OutboxStore, done func()) (*Runner, error) {
	return q.w.Relay(n, store, func(p *checker.Process, route string, i int) core.Publisher {
		return checker.NewPublisher(q.queues[route], p, &q.bus, q.w.Seed, uint64(n<<4+i))
	}, done)
}

// Handle runs do for each message that has come, in their order, and for some twice, as if the ack was lost. The relays
// have ended.
func (q *Queues) Handle(do func(key core.InboxKey) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.got {
		for range 1 + q.w.Dice.N(2) {
			if err := do(core.InboxKey{Consumer: x.route, Source: x.source, ID: x.id}); err != nil {
				return err
			}
		}
	}
	return nil
}
