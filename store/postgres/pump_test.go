package postgres_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// pump is a relay without a broker: it drives a dispatcher, and publishes by calling send on goroutines of their own.
type pump struct {
	d       *dispatch.Dispatcher
	store   core.OutboxStore
	routes  []string
	answers chan func()
	outcome func(item *dispatch.Item) core.Outcome // of what was sent
}

func newPump(store core.OutboxStore, opts dispatch.Options) *pump {
	opts.NewSession = func() core.Session { return core.Session(rand.Int64N(1<<62) + 1) }
	p := &pump{d: dispatch.New(opts), store: store, answers: make(chan func(), 256)}
	p.outcome = func(item *dispatch.Item) core.Outcome { return core.Published(&item.Record) }
	for _, r := range opts.Routes {
		p.routes = append(p.routes, r.Name)
	}
	return p
}

// run goes on until ctx ends, and then leaves in order; or until killed is closed, and then leaves nothing in order.
// send returns when a batch was published.
func (p *pump) run(ctx context.Context, killed <-chan struct{}, batch, parallel int, send func(items []*dispatch.Item)) {
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	start := func(work func() (then func())) {
		go func() {
			then := work()
			select {
			case p.answers <- then:
			case <-base.Done():
			}
		}()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	done, sending := ctx.Done(), 0
	for !p.d.Left() {
		now := time.Now()
		for _, r := range p.routes {
			for sending < parallel {
				items := p.d.HandOut(now, r, batch)
				if len(items) == 0 {
					break
				}
				sending++
				start(func() func() {
					send(items)
					return func() {
						sending--
						for _, item := range items {
							p.d.Conclude(time.Now(), item, p.outcome(item))
						}
					}
				})
			}
		}
		for _, c := range p.d.Calls(now) {
			start(func() func() {
				c.Do(base, p.store)
				return func() { p.d.Done(time.Now(), c) }
			})
		}
		if next := p.d.Next(); !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case then := <-p.answers:
			then()
			for more := true; more; {
				select {
				case then := <-p.answers:
					then()
				default:
					more = false
				}
			}
		case <-timer.C:
		case <-done:
			done = nil
			p.d.Stop()
		case <-killed:
			return
		}
	}
}
