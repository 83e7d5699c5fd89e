package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// crowd is what relays and operators did at the same time.
type crowd struct {
	t     *testing.T
	o     *postgres.Outbox
	stop  context.CancelFunc
	moved func() // at each message that is published

	mu        sync.Mutex
	holds     map[string]bool // ids that a relay holds
	published map[string][]int64
	times     map[string]int
	left      int
}

func (c *crowd) fail(format string, a ...any) {
	c.t.Errorf(format, a...)
	c.stop()
}

// relay holds without regard to keys, and settles at random.
func (c *crowd) relay(ctx context.Context, o *postgres.Outbox, self core.Session) {
	for ctx.Err() == nil {
		answer, err := tryHoldNext(ctx, o, self, want(8))
		if err != nil {
			if ctx.Err() == nil {
				c.fail("hold: %v", err)
			}
			return
		}
		var out []core.Outcome
		cut := map[string]bool{}
		c.mu.Lock()
		for i := range answer.Records {
			r := &answer.Records[i]
			id, key := r.Envelope.ID, r.Envelope.Key
			if c.holds[id] {
				c.fail("message %s was held twice", id)
			}
			c.holds[id] = true
			switch n := rand.IntN(10); {
			case cut[key]:
				out = append(out, core.Release(r, 0, false))
			case n < 2:
				out, cut[key] = append(out, core.Retry(r, errors.New("no"), time.Duration(rand.IntN(20))*time.Millisecond)), true
			case n < 4:
				out, cut[key] = append(out, core.Abandon(r, waybill.ReasonRejected, errors.New("no"))), true
			default:
				out = append(out, core.Published(r))
				c.published[key] = append(c.published[key], r.Seq)
			}
		}
		c.mu.Unlock()
		if rand.IntN(4) == 0 { // hold them for a moment
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rand.IntN(5)) * time.Millisecond):
			}
		}
		c.mu.Lock() // before others can hold them
		for i := range answer.Records {
			delete(c.holds, answer.Records[i].Envelope.ID)
		}
		c.mu.Unlock()
		for i, err := range o.Settle(context.WithoutCancel(ctx), self, out) {
			for errors.Is(err, core.ErrLocked) { // an operator's command has locked it
				err = o.Settle(context.WithoutCancel(ctx), self, out[i:i+1])[0]
			}
			if err != nil {
				c.fail("%s of a message that this relay holds: %v", out[i].Event(), err)
			}
			if err == nil && out[i].State() == core.StatePublished {
				c.mu.Lock()
				c.moved()
				c.times[out[i].Ref().ID]++
				if c.left--; c.left == 0 {
					c.stop()
				}
				c.mu.Unlock()
			}
		}
	}
}

// operator lists blocked keys and decides about heads: about the one that was listed, later ones of the key, and
// records that a relay may hold by now. It also redrives.
func (c *crowd) operator(ctx context.Context, ids []string, actions []admin.HeadAction, force bool) {
	for ctx.Err() == nil {
		keys, _, err := c.o.BlockedKeys(ctx, admin.BlockedKeysRequest{Route: waybill.DefaultRoute, BlockAfterAbandon: true, Limit: 5})
		for i := range keys {
			if err != nil {
				break
			}
			id := keys[i].Head.Envelope.ID
			if rand.IntN(4) == 0 {
				id = ids[rand.IntN(len(ids))]
			}
			err = c.o.DecideHead(ctx, waybill.DefaultRoute, keys[i].Key, id, actions[rand.IntN(len(actions))])
			if errors.Is(err, waybill.ErrNotFound) || errors.Is(err, waybill.ErrInFlight) {
				err = nil
			}
		}
		if err == nil {
			f := admin.Filter{Routes: []string{waybill.DefaultRoute}}
			if rand.IntN(2) == 0 {
				f.IDs = ids
			}
			_, err = c.o.Redrive(ctx, admin.RedriveRequest{Filter: f, BlockAfterAbandon: true, Force: force, Page: admin.PageRequest{Limit: 20}})
		}
		if err != nil {
			if ctx.Err() == nil {
				c.fail("an operator: %v", err)
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.IntN(8)) * time.Millisecond):
		}
	}
}

func runCrowd(t *testing.T, actions []admin.HeadAction, force bool) (*crowd, []string) {
	t.Helper()
	o, pool := newOutbox(t, postgres.Options{})
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &crowd{t: t, o: o, stop: stop, moved: moved, holds: map[string]bool{}, published: map[string][]int64{}, times: map[string]int{}}
	var msgs []waybill.Message
	for i := range 400 {
		msgs = append(msgs, message(waybill.Key(fmt.Sprint("k", i%20)), waybill.ID(strconv.Itoa(i))))
	}
	var ids []string
	for _, s := range stage(t, pool, o, msgs...) {
		ids = append(ids, s.ID)
	}
	c.left = len(ids)
	var wg sync.WaitGroup
	self := session(t, o, waybill.DefaultRoute)
	wg.Go(func() { c.relay(ctx, o, self) })
	for range 2 {
		wg.Go(func() { c.operator(ctx, ids, actions, force) })
	}
	wg.Wait()
	if c.left > 0 && !t.Failed() {
		t.Errorf("%d of %d messages were not published: no progress", c.left, len(ids))
	}
	for id, n := range c.times {
		if n != 1 {
			t.Errorf("message %s was published %d times", id, n)
		}
	}
	return c, ids
}

// OR-05 DB-12: with skips, heads set aside and redrives by force order is given up, but nothing is lost, doubled or
// taken from a relay that holds it.
func TestDecisionsRaceWithHolds(t *testing.T) {
	t.Parallel()
	runCrowd(t, []admin.HeadAction{admin.HeadSkip, admin.HeadSetAside, admin.HeadRequeue}, true)
}

// DB-11: counts beyond 10,000 say that they are estimates, and are near; below they are exact. The age is that of the
// oldest.
func TestCountsOfManyAreEstimates(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	began := time.Now()
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (route, topic, body, slot, ready_since) SELECT 'few', 't', '', i % 64, now() - interval '1 hour' FROM generate_series(1, 10000) i`)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (route, topic, body, slot) SELECT 'many', 't', '', i % 64 FROM generate_series(1, 30000) i`)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (route, topic, body, slot) SELECT 'more', 't', '', i % 64 FROM generate_series(1, 20000) i`)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (route, topic, body, state, settled_at, reason) SELECT 'few', 't', '', 5, now(), 'rejected' FROM generate_series(1, 7)`)
	counts, err := o.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range counts {
		got = append(got, fmt.Sprint(c.Route, " ", c.State, " ", c.Estimated))
		switch {
		case c.Route == "few" && c.State == core.StatePending && (c.N != 10_000 || c.Oldest < time.Hour || c.Oldest > time.Hour+time.Since(began)+time.Millisecond),
			c.Route == "few" && c.State == core.StateAbandoned && c.N != 7,
			c.Route == "many" && (c.N < 28_500 || c.N > 31_500),
			c.Route == "more" && (c.N < 19_000 || c.N > 21_000):
			t.Errorf("%+v", c)
		}
	}
	if want := "few pending false,few abandoned false,many pending true,more pending true"; strings.Join(got, ",") != want {
		t.Errorf("%v, want %s", got, want)
	}
}
