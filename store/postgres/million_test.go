package postgres_test

// A million keys that wait, for one relay and its successors: other messages go after a few reads, the
// memory of a relay is bounded, and all go when their wait ends. Rates are logged, beside the rate of
// messages that wait for nothing.

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

const (
	// fewReads is how many reads of its relay a message needs at most. Two bring it: one shows that it is
	// there, and one shows that nothing blocks its key. Others may be under way. movedReads is for a partition that
	// has just come from another relay, or that begins beside messages of a paused topic. A relay needs 500 reads
	// for all keys that wait, and 2,000 for all messages of a paused topic.
	fewReads, movedReads = 10, 100
	// relayMemory is how much memory a relay may use.
	relayMemory = 300_000_000
)

// waits are the ways in which keys wait: the columns of their rows, and the end of the wait.
var waits = map[string]struct {
	blocks       bool
	columns, row string
	end          func(q *queued)
}{
	"retries": {
		columns: "state, attempts, retry, due_at", row: "4, 1, true, now() + interval '1 hour'",
		end: func(q *queued) {
			exec(q, q.pool, "UPDATE waybill.waybill_outbox SET due_at = now() WHERE retry")
			q.begin = time.Now() // the table is as it would be if the time had come
		},
	},
	"blocked": {
		blocks: true, columns: "state, attempts, settled_at, reason, blocks", row: "5, 1, now(), 'rejected', true",
		end: func(q *queued) {
			req := admin.RedriveRequest{Filter: admin.Filter{States: []core.State{core.StateAbandoned}}, All: true, Force: true, BlockAfterAbandon: true, Page: admin.PageRequest{Limit: admin.MaxPageLimit}}
			for {
				r, err := q.o.Redrive(q.Context(), req)
				if err != nil {
					q.Fatal(err)
				}
				if req.Page.After = r.Next; r.Next == 0 {
					return
				}
			}
		},
	},
	"paused": {
		columns: "state", row: "1",
		end: func(q *queued) {
			for _, r := range q.relays {
				r.p.answers <- func() { r.p.d.PauseTopic(waybill.DefaultRoute, "t.waits", false) }
			}
		},
	},
}

// TestWaitingKeysStopNobody: more keys than a relay remembers wait for a retry, behind blocking records, or on a paused
// topic. The relay is restarted, killed, and joined by others.
func TestWaitingKeysStopNobody(t *testing.T) { //nolint:tparallel // the subtests of eachWait are
	t.Parallel()
	eachWait(t, func(t *testing.T, wait string, killed bool) {
		t.Helper()
		t.Parallel()
		o, pool := newOutbox(t, postgres.Options{})
		opts := dispatch.Options{MaxKeys: 20, Batch: 50, PollMax: 50 * time.Millisecond}
		(&queued{crowded: &crowded{t, o, pool, opts, 300}, wait: wait}).run(killed)
	})
}

func eachWait(t *testing.T, test func(t *testing.T, wait string, killed bool)) {
	t.Helper()
	for _, wait := range slices.Sorted(maps.Keys(waits)) {
		t.Run(wait, func(t *testing.T) { test(t, wait, false) })
		t.Run(wait+", killed", func(t *testing.T) { test(t, wait, true) })
	}
}

// queued is an outbox in which keys wait, and relays.
type queued struct {
	*crowded
	wait   string
	memory *usage // nil: not measured
	relays []*oneOf
	begin  time.Time // of the messages whose rate is measured

	mu      sync.Mutex
	came    int
	others  map[string]arrival // messages that do not wait
	seen    []bool             // by its number: whether the message that waits has arrived
	doubled int
}

// arrival says at which read of its relay, whose counter is by, a message arrived.
type arrival struct {
	by *atomic.Int64
	at int64
}

// oneOf is one of several relays.
type oneOf struct {
	core.OutboxStore
	p          *pump
	reads      *atomic.Int64
	stop, kill func()
}

// Read counts reads.
func (r *oneOf) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	r.reads.Add(1)
	return r.OutboxStore.Read(ctx, self, request)
}

// run lets relays come and go, or one be killed, while keys wait, and ends the wait.
func (q *queued) run(killed bool) {
	q.others, q.seen = map[string]arrival{}, make([]bool, q.n+1)
	pass := movedReads
	long := patience.For(10 * time.Second)

	plain := q.n / 5
	q.fill("plain", "t.x", plain, "state", "1")
	q.add(long)
	rate := q.until("messages that wait for nothing", plain)
	q.end(0, func(r *oneOf) { r.stop() })

	q.fill("waits", "t.waits", q.n, waits[q.wait].columns, waits[q.wait].row)
	q.add(long)
	q.fresh("at the beginning", pass)
	q.atRest()
	q.fresh("later", fewReads)
	if killed {
		q.end(0, func(r *oneOf) { r.stop() })
		q.add(time.Second)
		q.fresh("restarted", pass)
		q.end(0, func(r *oneOf) { r.kill() })
		q.add(long)
		q.fresh("after a kill", pass)
	} else {
		for range 3 {
			q.add(long)
		}
		q.shared()
		q.fresh("four relays", pass)
		q.atRest()
		q.fresh("four, later", fewReads)
		q.end(1, func(r *oneOf) { r.stop() })
		q.shared()
		q.fresh("one of four", pass)
	}
	q.atRest()
	var behind []string
	for _, n := range []int{1, q.n / 2, q.n} {
		behind = append(behind, fmt.Sprintf("behind %d", n))
		stage(q, q.pool, q.o, message(waybill.ID(behind[len(behind)-1]), waybill.Key(fmt.Sprintf("key %d", n))))
	}
	q.fresh("last", fewReads)
	others := q.count()
	if slices.Contains(q.seen, true) {
		q.Error("a message arrived although it waits")
	}
	q.begin = time.Now()
	waits[q.wait].end(q)
	after := q.until("messages that waited", others+q.n+len(behind))
	q.end(0, func(r *oneOf) { r.stop() })
	q.Logf("rate: %.0f/s of messages that waited, %.0f/s of others: %.2f; %d arrived twice", after, rate, after/rate, q.doubled)
	patience.Until(q, "nothing is left", func() bool { return queryInt(q, q.pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })
}

// add starts a relay.
func (q *queued) add(lease time.Duration) {
	q.Helper()
	opts := q.opts
	opts.Lease, opts.Routes = lease, []dispatch.Route{{Name: waybill.DefaultRoute, Blocks: waits[q.wait].blocks}}
	r := &oneOf{OutboxStore: q.o, reads: new(atomic.Int64)}
	r.p = newPump(r, opts)
	r.p.d.PauseTopic(waybill.DefaultRoute, "t.waits", q.wait == "paused")
	ctx, end := context.WithCancel(q.Context())
	killed := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { r.p.run(ctx, killed, 500, 8, func(items []*dispatch.Item) { q.take(r, items) }) })
	r.stop = func() {
		end()
		wg.Wait()
	}
	r.kill = func() {
		close(killed)
		wg.Wait()
	}
	q.Cleanup(r.stop)
	q.relays = append(q.relays, r)
	q.memory.of(len(q.relays))
}

// shared waits until all relays own as many partitions, or nearly.
func (q *queued) shared() {
	q.Helper()
	patience.Until(q, "the relays have equal shares", func() bool {
		return queryInt(q, q.pool, `SELECT count(*) FROM (SELECT FROM waybill.waybill_outbox_partitions WHERE owner <> 0
			GROUP BY owner HAVING abs(count(*) - $1) <= 1) o`, core.NumSlots/len(q.relays)) == int64(len(q.relays))
	})
}

// atRest waits until all relays have read everything.
func (q *queued) atRest() {
	q.Helper()
	for _, r := range q.relays {
		patience.Moving(q, "a relay has read all", func() (int64, bool) {
			rests := make(chan bool, 1)
			r.p.answers <- func() { rests <- !r.p.d.More(waybill.DefaultRoute) && r.p.d.Idle(time.Now(), waybill.DefaultRoute) }
			return r.reads.Load(), <-rests
		})
	}
}

// end ends all relays but some, each by fn.
func (q *queued) end(keep int, fn func(r *oneOf)) {
	q.Helper()
	for _, r := range q.relays[keep:] {
		fn(r)
	}
	q.relays = slices.Delete(q.relays, keep, len(q.relays))
	q.memory.of(keep)
}

// take takes in the messages that a relay publishes.
func (q *queued) take(r *oneOf, items []*dispatch.Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range items {
		kind, number, _ := strings.Cut(item.Record.Envelope.ID, " ")
		n, _ := strconv.Atoi(number)
		switch kind {
		case "plain":
		case "waits":
			if q.seen[n] {
				q.doubled++
				continue
			}
			q.seen[n] = true
		case "behind":
			if !q.seen[n] {
				q.Errorf("message %d of a key arrived after the one that was staged behind it", n)
			}
		default:
			if _, before := q.others[item.Record.Envelope.ID]; before { // after the kill
				q.doubled++
				continue
			}
			q.others[item.Record.Envelope.ID] = arrival{r.reads, r.reads.Load()}
		}
		q.came++
	}
}

func (q *queued) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.came
}

// until waits until n messages have arrived, and returns their rate. The next ones are counted anew.
func (q *queued) until(what string, n int) float64 {
	q.Helper()
	patience.Moving(q, fmt.Sprintf("%d %s arrive", n, what), func() (int, bool) { return q.count(), q.count() >= n })
	q.mu.Lock()
	defer q.mu.Unlock()
	q.came = 0
	return float64(n) / time.Since(q.begin).Seconds()
}

// fill stages a message for each of n keys.
func (q *queued) fill(kind, topic string, n int, columns, row string) {
	q.Helper()
	exec(q, q.pool, fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (id, topic, key, body, own_id, %s)
		SELECT '%s ' || i, '%s', 'key ' || i, 'body', false, %s FROM generate_series(1, %d) i`, columns, kind, topic, row, n))
	exec(q, q.pool, "ANALYZE waybill.waybill_outbox")
	q.begin = time.Now()
}

// fresh stages a message of a new key, and one without a key, and waits until both arrive, after some reads.
func (q *queued) fresh(name string, reads int) {
	q.Helper()
	ids := []string{name + ", with a key", name + ", without a key"}
	stage(q, q.pool, q.o, message(waybill.ID(ids[0]), waybill.Key(name)), message(waybill.ID(ids[1])))
	begin := time.Now()
	before := map[*atomic.Int64]int64{}
	for _, r := range q.relays {
		before[r.reads] = r.reads.Load()
	}
	var most int64
	patience.Moving(q, "others arrive: "+name, func() (progress int64, done bool) {
		for _, r := range q.relays {
			progress += min(r.reads.Load()-before[r.reads], int64(reads))
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		done = true
		for _, id := range ids {
			a, came := q.others[id]
			most, done = max(most, a.at-before[a.by]), done && came
		}
		return progress, done
	})
	q.Logf("%-20s %5d reads, %6s, %3d MB", name, most, time.Since(begin).Round(time.Millisecond), q.memory.peak())
	if most > int64(reads) {
		q.Errorf("%s: the messages arrived after %d reads, want at most %d", name, most, reads)
	}
}

// usage measures the memory of the process: of the heap, and of stacks.
type usage struct {
	testing.TB
	mu     sync.Mutex
	relays int
	most   uint64
}

// measure measures until the test ends.
func measure(tb testing.TB) *usage {
	tb.Helper()
	m := &usage{TB: tb}
	ctx, end := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			m.sample()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	tb.Cleanup(func() {
		end()
		wg.Wait()
	})
	return m
}

func (m *usage) sample() {
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
	}
	metrics.Read(s)
	var sum uint64
	for i := range s {
		sum += s[i].Value.Uint64()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.most = max(m.most, sum)
}

// of checks what the relays used up to now, and begins to measure another number of them.
func (m *usage) of(relays int) {
	if m == nil {
		return
	}
	if most := m.peak(); most > relayMemory*max(m.relays, 1)/1_000_000 {
		m.Errorf("%d relays used %d MB, want at most %d each", m.relays, most, relayMemory/1_000_000)
	}
	m.relays = relays
	runtime.GC() // what relays used that have ended
	m.mu.Lock()
	defer m.mu.Unlock()
	m.most = 0
}

// peak returns the most that was used, in MB.
func (m *usage) peak() int {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.most / 1_000_000)
}
