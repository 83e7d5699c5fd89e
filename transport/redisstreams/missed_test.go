package redisstreams_test

// A user who sets no option has the messages of a killed process again within ten seconds. The times that the server is
// told bound that on a machine of any speed.

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// mostMissed is how long the messages of a killed process may wait. The rest of ten seconds is for round trips.
const mostMissed = 9700 * time.Millisecond

// holdRole is the process that is killed.
func holdRole(ctx context.Context, _, _ string) error {
	bus, err := redisstreams.Dial(ctx, os.Getenv(processRole+"_URL"), redisstreams.Options{Bus: os.Getenv(processRole + "_BUS")})
	if err != nil {
		return err
	}
	return killtest.Hold(ctx, bus)
}

// told keeps the times that a client tells the server.
type told struct {
	mu    sync.Mutex
	holds []time.Duration // one for each look at the queue
	looks int             // for what dead receivers hold
	waits []time.Duration // before the next look at the queue
}

func (*told) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*told) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *told) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.note(cmd.Args())
		return next(ctx, cmd)
	}
}

func (l *told) note(args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case args[0] == "xread":
		for i := range args[1:] {
			if ms, ok := args[i+1].(int64); ok && args[i] == "block" {
				l.waits = append(l.waits, time.Duration(ms)*time.Millisecond)
			}
		}
	case len(args) == 14 && args[2] == 5: // take.lua
		if hold, ok := args[11].(int64); ok {
			l.holds = append(l.holds, time.Duration(hold)*time.Millisecond)
		}
		if args[12] == "1" {
			l.looks++
		}
	}
}

// reset forgets.
func (l *told) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds, l.looks, l.waits = nil, 0, nil
}

// wait returns the first wait since reset, and how often there was a look for dead receivers.
func (l *told) wait(t *testing.T) (d time.Duration, looks int) {
	t.Helper()
	patience.Until(t, "the receiver waits", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.waits) == 0 {
			return false
		}
		d, looks = l.waits[0], l.looks
		return true
	})
	return d, looks
}

// listened returns a transport on a client that tells l.
func listened(t *testing.T, url string, opts redisstreams.Options, l *told) *redisstreams.Transport {
	t.Helper()
	client := raw(t, url)
	client.AddHook(l)
	bus, err := redisstreams.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, bus)
	return bus
}

// TestKilledProcessIsMissed: with no option set, the messages of a killed process come to another consumer. A hold ends
// eight seconds after its last renewal, which was before the death; here the server's clock does not wait for that. At
// night it does, and the process has renewed.
//
// TR-04.
func TestKilledProcessIsMissed(t *testing.T) {
	t.Parallel()
	url, bus, l := testenv.Redis(t), newBus(), &told{}
	keys := queueKeys{t, raw(t, url), bus}
	m := killtest.Missed{
		Bus: listened(t, url, redisstreams.Options{Bus: bus}, l),
		Env: []string{processRole + "_URL=" + url, processRole + "_BUS=" + bus},
	}
	if tier.IsNightly() {
		m.Held = func() {
			was := keys.idle(killtest.HeldQueue)
			patience.Until(t, "the process renews", func() bool {
				now := keys.idle(killtest.HeldQueue)
				defer func() { was = now }()
				return now < was
			})
		}
	} else {
		m.Killed = func() { keys.endHolds(killtest.HeldQueue, redisstreams.DefaultHoldFor) }
	}
	m.Run(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.looks == 0 || len(l.holds) == 0 {
		t.Fatalf("the server was asked %d times, %d times for dead receivers", len(l.holds), l.looks)
	}
	for _, hold := range l.holds {
		if hold != redisstreams.DefaultHoldFor {
			t.Errorf("the server was told of holds of %s, want %s", hold, redisstreams.DefaultHoldFor)
		}
	}
}

// idle returns how long ago a delivery of the queue was renewed, the longest of all.
func (q queueKeys) idle(queue string) (longest time.Duration) {
	q.tb.Helper()
	list, err := q.client.XPendingExt(q.tb.Context(), &redis.XPendingExtArgs{
		Stream: q.key("queue", queue), Group: "waybill", Start: "-", End: "+", Count: 1000,
	}).Result()
	if err != nil {
		q.tb.Fatal(err)
	}
	for _, p := range list {
		longest = max(longest, p.Idle)
	}
	return longest
}

// TestLooksForTheDead: a receiver with no option set looks for the messages of dead receivers so often that they come
// within ten seconds. A message that comes in between does not put the next look off.
//
// TR-04.
func TestLooksForTheDead(t *testing.T) {
	t.Parallel()
	l := &told{}
	bus := listened(t, testenv.Redis(t), redisstreams.Options{Bus: newBus()}, l)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	waits := func() (d time.Duration, looks int) {
		t.Helper()
		l.reset()
		ended := make(chan error, 1)
		go func() {
			ds, err := r.Receive(t.Context(), 1)
			for _, d := range ds {
				err = r.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr()
			}
			ended <- err
		}()
		d, looks = l.wait(t)
		publish(t, bus, envelope("m", "a"))
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		return d, looks
	}
	redisstreams.LookForDead(r)
	if d, looks := waits(); looks == 0 || redisstreams.DefaultHoldFor+d > mostMissed {
		t.Errorf("after %d looks it waits for %s; with holds of %s that is more than %s", looks, d, redisstreams.DefaultHoldFor, mostMissed)
	}
	const left = 500 * time.Millisecond
	for looks := 1; looks != 0; { // the machine was too slow: it has looked again
		redisstreams.LookForDeadIn(r, left)
		var d time.Duration
		if d, looks = waits(); looks == 0 && d > left+time.Millisecond {
			t.Errorf("it waits for %s, and must look in %s", d, left)
		}
	}
}
