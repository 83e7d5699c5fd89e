package dashboard_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// find returns the record of the only message that matches.
func find(t *testing.T, d *demo.Demo, f admin.Filter) admin.Stored {
	t.Helper()
	l, err := d.Store.List(t.Context(), f, admin.PageRequest{})
	if err != nil || len(l.Records) != 1 {
		t.Fatalf("%d records, error %v; want one", len(l.Records), err)
	}
	return l.Records[0]
}

func messageURL(s *admin.Stored) string {
	return "/message?route=" + url.QueryEscape(s.Route) + "&id=" + url.QueryEscape(s.Envelope.ID)
}

// OP-07
func TestPages(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, _ := open(t, d.Options())
	page := b.get("/", http.StatusOK)
	has(t, page, "1 message on route default of shop is given up: it is larger than the broker takes.", "Look at it",
		"1 message on route default of shop is given up: no queue is bound for its topic.",
		"1 message of queue billing.orders is parked: the consumer gave up.", "shop: run: not running", "1 message on route default of shop failed and waits for the next attempt", "Waiting 5", "Published", "Staged", "archive")
	has(t, b.get("/messages", http.StatusOK), "orders.imported", "invoices.sent", "frame of 135266304 bytes")
	has(t, b.get("/messages?state=failed", http.StatusOK), "order-13", "queue billing.orders is full")
	if got := b.get("/messages?state=failed", http.StatusOK); strings.Contains(got, "invoices.sent") {
		t.Error("the filter lets everything through")
	}
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	has(t, b.get("/messages?id="+poison.Envelope.ID, http.StatusOK), "orders.imported")
	has(t, b.get(messageURL(&poison), http.StatusOK), "orders.imported abandoned", "as number 1 of outbox shop", "1 attempt was refused",
		"it is larger than the broker takes", `"city": "Turin"`, "Send again…", poison.Envelope.ID)
	has(t, b.get("/keys", http.StatusOK), "order-13", "Blocked on route default", "it is tried again in", "after 1 attempt", "queue billing.orders is full")
	has(t, b.get("/keys?after=zzz", http.StatusOK), "No key is blocked.")
	if got := text(b.get("/keys", http.StatusOK)); strings.Contains(got, "order-102") {
		t.Errorf("a key is shown as blocked by an abandoned message, on a route that does not block: %s", got)
	}
	blocking := d.Options()
	blocking.Outboxes[0].Blocking = []string{waybill.DefaultRoute}
	c, _ := open(t, blocking)
	has(t, c.get("/keys", http.StatusOK), "order-102", "by invoices.sent : no queue is bound for its topic.")
	has(t, b.get("/schedule", http.StatusOK), "scheduled", "retry 1", "1h 59m")
	has(t, b.get("/parked", http.StatusOK), "the order has no total", "1 × rejected")
	has(t, b.get("/parked?error=nothing+such", http.StatusOK), "None matches.")
	parked, err := d.Bus.ListParked(t.Context(), demo.Queue, admin.ParkedFilter{}, 10)
	if err != nil || len(parked) != 1 {
		t.Fatal(parked, err)
	}
	has(t, b.get("/parked/message?id="+parked[0].Envelope.ID, http.StatusOK), "Oslo", "the order has no total", "Mend the body and replay")
	has(t, b.get("/parked/message?position=1", http.StatusOK), "Oslo")
	for _, name := range []string{"/static/style.css", "/static/live.js", "/static/icon.svg"} {
		b.get(name, http.StatusOK)
	}
	has(t, b.get("/nothing", http.StatusNotFound), "There is no such page.")
	has(t, b.get("/messages?outbox=none", http.StatusNotFound), `There is no outbox "none" here.`)
	has(t, b.get("/parked?queue=none", http.StatusNotFound), `There is no queue "none" here.`)
}

// OP-07
func TestWhatCannotBeAsked(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, _ := open(t, d.Options())
	has(t, b.get("/messages?after=99999999", http.StatusOK), "No message matches.")
	for _, target := range []string{
		"/messages?after=-1", "/messages?after=x", "/messages?state=lost", "/messages?since=yesterday",
		"/messages?since=2026-02-02T00:00&until=2026-01-01T00:00", "/messages?after=99999999999999999999",
	} {
		has(t, b.get(target, http.StatusBadRequest), "That cannot be asked")
	}
	for _, target := range []string{"/parked/message", "/parked/message?position=0", "/parked/message?position=99", "/parked/message?id=none", "/jobs/none"} {
		b.get(target, http.StatusNotFound)
	}
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	key := b.get("/keys", http.StatusOK)
	b.get(messageURL(&poison), http.StatusOK)
	if _, err := d.Store.PurgeRecords(t.Context(), admin.PurgeRequest{Filter: admin.Filter{Routes: []string{waybill.DefaultRoute}}, Waiting: true}); err != nil {
		t.Fatal(err)
	}
	has(t, b.get(messageURL(&poison), http.StatusNotFound), "It was published and deleted, or purged, meanwhile.")
	form := fields(t, key, `value="skip"`)
	form.Set("action", "skip")
	if w := b.send(http.MethodPost, "/preview", form); w.Code != http.StatusNotFound {
		t.Errorf("the preview for a message that has vanished has status %d", w.Code)
	}
	form = url.Values{"token": form["token"], "outbox": {demo.Outbox}, "id": {poison.Envelope.ID}, "action": {"redrive"}}
	has(t, b.send(http.MethodPost, "/preview", form).Body.String(), "Nothing would change.")
}

// The chain of causes leads to the messages.
// OP-07
func TestCauses(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	opts := d.Options()
	opts.Path = "/waybill"
	opts.Outboxes[0].Store = &shown{OutboxStore: d.Store, inspect: func(s *admin.Stored) {
		s.Envelope.CausationID, s.Envelope.Lineage = "b&c", []string{"a", "b&c"}
	}}
	b, _ := open(t, opts)
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	page := b.get("/waybill"+messageURL(&poison), http.StatusOK)
	if want := `<a class="id" href="/waybill/messages?id=b%26c&amp;outbox=shop">b&amp;c</a>`; strings.Count(page, want) != 2 {
		t.Errorf("want twice %s: %s", want, page)
	}
	if w := b.send(http.MethodGet, "/waybill", nil); w.Header().Get("Location") != "/waybill/" {
		t.Errorf("the path without a slash leads to %q", w.Header().Get("Location"))
	}
	has(t, b.get("/waybill/", http.StatusOK), "What needs attention")
}

// shown is a store that shows other records, and counts its calls.
type shown struct {
	core.OutboxStore
	inspect     func(*admin.Stored)
	asked       atomic.Int64
	met         atomic.Int64
	err         error
	noHeartbeat error
	count       func(call string) // nil = the calls have no budget
}

func (s *shown) Unwrap() any { return s.OutboxStore }

func (s *shown) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	inspector, _ := core.As[admin.Inspector](s.OutboxStore)
	found, err := inspector.Inspect(ctx, route, id)
	if s.inspect != nil {
		s.inspect(&found)
	}
	return found, err
}

func (s *shown) List(ctx context.Context, f admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	inspector, _ := core.As[admin.Inspector](s.OutboxStore)
	return inspector.List(ctx, f, p)
}

func (s *shown) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	s.met.Add(1)
	s.counts("heartbeat")
	if err := cmp.Or(s.err, s.noHeartbeat); err != nil {
		return core.Membership{}, err
	}
	return s.OutboxStore.Heartbeat(ctx, m)
}

func (s *shown) Counts(ctx context.Context) ([]admin.Count, error) {
	s.asked.Add(1)
	s.counts("counts")
	if s.err != nil {
		return nil, s.err
	}
	counter, _ := core.As[admin.Counter](s.OutboxStore)
	return counter.Counts(ctx)
}

func (s *shown) Read(ctx context.Context, self core.Session, r core.ReadRequest) (core.ReadResult, error) {
	s.counts("read")
	return s.OutboxStore.Read(ctx, self, r)
}

func (s *shown) counts(call string) {
	if s.count != nil {
		s.count(call)
	}
}

// crowded is a store with more messages than it counts.
type crowded struct{ core.OutboxStore }

func (crowded) Counts(context.Context) ([]admin.Count, error) {
	return []admin.Count{
		{Route: "a", State: core.StatePending, N: 30_120, Due: 30_120, Estimated: true, Oldest: time.Hour},
		{Route: "a", State: core.StateFailed, N: 10_000, Estimated: true, AtLeast: true},
		{Route: "a", State: core.StateAbandoned, Reason: waybill.ReasonRejected, N: 20_000, Estimated: true},
	}, nil
}

// OP-07: a number that is not exact says so, in the table, in the chart and in sentences.
func TestEstimatesAreMarked(t *testing.T) {
	t.Parallel()
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: crowded{store}}}})
	page := b.get("/", http.StatusOK)
	has(t, page, "a ~30 120 0 >10 000 ~20 000 ", "Waiting >40 120 messages", "More than 40 120 messages on route a of x wait",
		"More than 10 000 messages on route a of x failed", "About 20 000 messages on route a of x are given up")
}

// Without a viewer the stores are counted once in five seconds, also for the metrics of a relay of this process.
// OP-07
func TestNobodyLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		counted, reader := &shown{OutboxStore: store, count: patience.BudgetOf(t).Counter()}, metric.NewManualReader()
		bus, err := memtransport.New(memtransport.Options{})
		if err != nil {
			t.Fatal(err)
		}
		quiet := slog.New(slog.DiscardHandler)
		r, err := relay.New(counted, bus, relay.Options{Logger: quiet, StaleAfter: -1, MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
		if err != nil {
			t.Fatal(err)
		}
		d, err := dashboard.New(dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: counted, Relay: r}}, Metrics: reader, Open: true, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = r.Run(ctx) })
		all.Go(func() { _ = d.Run(ctx) })
		patience.Pass(t, time.Minute+time.Second)
		if n := counted.asked.Load(); n != 12 {
			t.Errorf("the store was counted %d times in a minute, want 12", n)
		}
		var scrape metricdata.ResourceMetrics
		if err := reader.Collect(ctx, &scrape); err != nil || counted.asked.Load() != 13 {
			t.Errorf("a scrape counts the store once: %d, %v", counted.asked.Load(), err)
		}
		cancel()
		all.Wait()
	})
}

// curious is a relay that wants the counts again and again.
type curious struct{ dashboard.Relay }

func (curious) HealthWith(ctx context.Context, c admin.Counter) waybill.Health {
	for range 10 {
		_, _ = c.Counts(ctx)
	}
	return waybill.Health{Live: true, Ready: true}
}

// With any number of viewers of the overview, and with the relay's own questions, the store is asked once in two
// seconds. A stream ends after a minute, and with its viewer.
// OP-07
func TestViewersShareTheQuestions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(42*time.Second, "streams of a minute, of which 20 s pass on purpose")
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		counted := &shown{OutboxStore: store}
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: counted, Relay: curious{}}}})
		const viewers = 20
		ended := make(chan string, viewers)
		for range viewers {
			go func() {
				w := httptest.NewRecorder()
				b.page.ServeHTTP(w, b.request(http.MethodGet, "/live", nil))
				ended <- w.Body.String()
			}()
		}
		patience.Pass(t, 20*time.Second)
		synctest.Wait()
		if n := counted.asked.Load(); n < 8 || n > 11 {
			t.Errorf("the store was asked %d times in 20 s by %d viewers", n, viewers)
		}
		if n := counted.met.Load(); n < 3 || n > 4 {
			t.Errorf("the store was asked %d times in 20 s who its members are", n)
		}
		for range viewers {
			if n := strings.Count(<-ended, "data: "); n < 25 || n > 31 {
				t.Errorf("a stream of a minute had %d events", n)
			}
		}
		asked := counted.asked.Load() + counted.met.Load()
		patience.Pass(t, time.Hour)
		if counted.asked.Load()+counted.met.Load() != asked {
			t.Error("the store is asked although nobody looks")
		}
	})
}

// endless is a store in which a step of a search takes 100 ms, and no search comes to an end.
type endless struct {
	core.OutboxStore
	steps []int // the budget of each
}

func (e *endless) List(_ context.Context, _ admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	time.Sleep(100 * time.Millisecond)
	e.steps = append(e.steps, p.Budget)
	return admin.Listing{Next: p.After + int64(p.Budget)}, nil
}

func (*endless) Inspect(ctx context.Context, _, _ string) (admin.Stored, error) {
	<-ctx.Done()
	return admin.Stored{}, ctx.Err()
}

// A page searches in steps, each twice as large as the one before, begins none after a quarter of a second, and says
// how far it got. One message is searched for half a second; then the search goes on in the list.
// OP-07
func TestSearchesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		e := &endless{OutboxStore: store}
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: e}}})
		has(t, b.get("/messages?topic=rare", http.StatusOK), "Searched to number 70 000, and stopped there")
		if want := []int{10_000, 20_000, 40_000}; !slices.Equal(e.steps, want) {
			t.Errorf("the steps were %d, want %d", e.steps, want)
		}
		began := time.Now()
		w := b.send(http.MethodGet, "/message?route=default&id=a", nil)
		if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/messages?id=a&outbox=x&route=default" {
			t.Errorf("a message that is not found in time: status %d, to %q", w.Code, to)
		}
		if took := time.Since(began); took != 500*time.Millisecond {
			t.Errorf("it was searched for %s", took)
		}
	})
}

// The page names a store that does not answer on top. Once the store answers, the page is as before.
// OP-07
func TestStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		broken := &shown{OutboxStore: store, err: errors.New("connection refused")}
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: broken}}})
		has(t, b.get("/", http.StatusOK), "Outbox x does not answer: connection refused")
		broken.err = nil
		time.Sleep(3 * time.Second)
		has(t, b.get("/", http.StatusOK), "Nothing. All that is known works.")
	})
}

// A message says why it waits, and keys behind a topic without a queue are listed.
// OP-07, OP-19.
func TestWhyItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/shop"})
		if err != nil {
			t.Fatal(err)
		}
		stage := func(topic, id string, opts ...waybill.MessageOption) {
			tx := store.Begin()
			m := waybill.RawMessage(topic, "text/plain", []byte("b"), append([]waybill.MessageOption{waybill.ID(id)}, opts...)...)
			if _, err := store.Stage(t.Context(), tx, m); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		stage("nowhere", "trial")
		self := core.Member{Session: 7, Name: "relay-1", Heartbeats: 1, Lease: time.Hour, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
		membership, err := store.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true})
		if err != nil {
			t.Fatal(err)
		}
		self.Heartbeats++
		if _, err = store.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Transfers: []core.Transfer{{Partition: membership.Partitions[0].Partition, To: 7}}}); err != nil {
			t.Fatal(err)
		}
		request := core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}, UpToSeq: 100, Limit: 10}}, Bytes: 1000}
		result, err := store.Read(t.Context(), 7, request)
		if err != nil {
			t.Fatal(err)
		}
		retry := core.Retry(&result.Ranges[0].Records[0], waybill.ErrUnroutable, 5*time.Second)
		if err := store.Settle(t.Context(), 7, []core.Outcome{retry}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		stage("nowhere", "head", waybill.Key("c-0"))
		stage("fine", "behind", waybill.Key("c-0"))
		stage("fine", "alone")
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "shop", Store: store}}})
		for id, want := range map[string]string{
			"trial":  "It waits: no queue is bound for its topic nowhere: its next attempt is due in 5s",
			"head":   "It waits: no queue is bound for its topic nowhere: message trial tries for all of them",
			"behind": "It waits: message head of topic nowhere is before it in its key; about that one: no queue is bound",
			"alone":  "It waits: its turn, as far as the store knows: relay-1 serves route default",
		} {
			has(t, b.get("/message?route=default&id="+id, http.StatusOK), want)
		}
		keys := b.get("/keys", http.StatusOK)
		has(t, keys, "c-0 Blocked on route default", "by nowhere : no queue is bound for its topic. 1 message waits behind it.", "Skip…")
		if strings.Contains(text(keys), "Try again at once") {
			t.Error("a head that is due can be tried again")
		}
	})
}
