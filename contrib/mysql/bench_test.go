package waybillmysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/relay"
)

func BenchmarkStage(b *testing.B) {
	s := open(b, waybillmysql.Options{})
	storetest.Benchmark(b, func(*testing.B) storetest.Harness { return suiteHarness{&harness{store: s, second: s}} })
}

func BenchmarkInbox(b *testing.B) {
	h := newInboxHarness(b)
	inboxtest.Benchmark(b, func(*testing.B) inboxtest.Harness[*sql.Tx] { return h })
}

// inTurn counts the published records, and those that come before their turn.
type inTurn struct {
	mu   sync.Mutex
	next map[string]string
	n    atomic.Int64
	bad  atomic.Int64
}

func (p *inTurn) Traits() core.PublisherTraits {
	return core.PublisherTraits{Confirmed: true, KeyOrder: core.KeyOrderPipelinedPrefix}
}

func (p *inTurn) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	p.mu.Lock()
	for i := range batch {
		if e := &batch[i]; e.ID < p.next[e.Key] {
			p.bad.Add(1)
		} else {
			p.next[e.Key] = e.ID
		}
	}
	p.mu.Unlock()
	p.n.Add(int64(len(batch)))
	return make(core.Results, len(batch))
}

const drained = 60_000

// BenchmarkDrain compares relays that share a backlog of 1,000 keys, in order, with one loop as one writes it by hand,
// that selects and deletes 500 rows of the same table at a time.
func BenchmarkDrain(b *testing.B) {
	for _, relays := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("relays=", relays), func(b *testing.B) {
			for b.Loop() {
				ours, hand := drain(b, relays), byHand(b)
				b.ReportMetric(ours, "msg/s")
				b.ReportMetric(hand, "byhand/s")
				b.ReportMetric(ours/hand, "ratio")
			}
		})
	}
}

// backlog returns a store with a backlog, and its data source name.
func backlog(b *testing.B) (*waybillmysql.Store, string) {
	b.Helper()
	dsn := newDatabase(b, func(database string) string { return dsnOf(b, database) })
	s := openAt(b, dsn, waybillmysql.Options{})
	if err := s.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 256))
	for from := 0; from < drained; from += 500 {
		var msgs []waybill.Message
		for i := from; i < from+500; i++ {
			msgs = append(msgs, waybill.RawMessage("t", "", body, waybill.Key(strconv.Itoa(i%1000)), waybill.ID(fmt.Sprintf("%010d", i))))
		}
		if err := stage(b.Context(), s, msgs); err != nil {
			b.Fatal(err)
		}
	}
	return s, dsn
}

func drain(b *testing.B, relays int) float64 {
	b.Helper()
	s, dsn := backlog(b)
	p := &inTurn{next: map[string]string{}}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var wg sync.WaitGroup
	began := time.Now()
	for range relays {
		own := openAt(b, dsn, waybillmysql.Options{})
		r, err := relay.New(own, p, relay.Options{PollMin: 5 * time.Millisecond, PollMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() { _ = r.Run(ctx) })
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for left := 1; left > 0; <-tick.C {
		if p.n.Load() < drained {
			continue
		}
		if err := s.DB().QueryRow(`SELECT COUNT(*) FROM (SELECT 1 FROM waybill_outbox LIMIT 1) some`).Scan(&left); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(began)
	cancel()
	wg.Wait()
	if p.n.Load() != drained || p.bad.Load() != 0 {
		b.Errorf("%d of %d were published, %d before their turn", p.n.Load(), drained, p.bad.Load())
	}
	return drained / took.Seconds()
}

func byHand(b *testing.B) float64 {
	b.Helper()
	s, _ := backlog(b)
	last, began := int64(0), time.Now()
	step := func() (n int, err error) {
		tx, err := s.DB().Begin()
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		rows, err := tx.Query(`SELECT seq, id, topic, k, attrs, body FROM waybill_outbox WHERE route = 'default' AND seq > ? ORDER BY seq LIMIT 500`, last)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		first := last
		for rows.Next() {
			var id, topic, k string
			var attrs, body []byte
			if err := rows.Scan(&last, &id, &topic, &k, &attrs, &body); err != nil {
				return 0, err
			}
			n++
		}
		if err := rows.Err(); err != nil {
			return 0, err
		}
		if _, err := tx.Exec(`DELETE FROM waybill_outbox WHERE route = 'default' AND seq > ? AND seq <= ?`, first, last); err != nil {
			return 0, err
		}
		return n, tx.Commit()
	}
	for done := 0; done < drained; {
		n, err := step()
		if err != nil {
			b.Fatal(err)
		}
		done += n
	}
	return drained / time.Since(began).Seconds()
}
