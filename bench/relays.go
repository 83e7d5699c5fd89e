package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// withoutBroker drains 1,000 keys by one, two and four relays whose publisher does nothing. The raw limit is one loop
// of SELECT and DELETE over the same table.
func withoutBroker(ctx context.Context, env *servers, s scale) ([]row, error) {
	var rows []row
	for _, relays := range []int{1, 2, 4} {
		c := drainCase{backlog: 2 * s.backlog, body: 256, keys: 1000, relays: relays, nowhere: true}
		r, err := pairs(ctx, s.pairs,
			func(ctx context.Context) (sample, error) { return selectAndDelete(ctx, env, c) },
			func(ctx context.Context) (sample, error) { return drain(ctx, env, c) })
		if err != nil {
			return nil, err
		}
		r.name, r.unit = fmt.Sprintf("drain, 1,000 keys, no broker, relays: %d, against one loop of SELECT and DELETE", relays), "msg/s"
		r.target = map[int]string{1: "≥ 0.55; CPU ≤ 0.012", 2: "≥ 0.7 of one; CPU ≤ 0.017", 4: "≥ 0.7 of one; CPU ≤ 0.021"}[relays]
		rows = append(rows, r)
	}
	return rows, nil
}

// selectAndDelete drains a backlog by hand, 500 rows a transaction.
func selectAndDelete(ctx context.Context, env *servers, c drainCase) (s sample, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return s, err
	}
	defer db.close(ctx)
	if err := stageBacklog(ctx, db, c); err != nil {
		return s, err
	}
	before, started := readCPU(), time.Now()
	var last int64
	for done := 0; done < c.backlog; {
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT seq, id, topic, key, type, source, content_type, occurred_at, body
FROM waybill.waybill_outbox WHERE route = 'default' AND seq > $1 ORDER BY seq LIMIT 500`, last)
			if err != nil {
				return err
			}
			var seq int64
			var id, topic, key, kind, source, contentType string
			var at time.Time
			var body []byte
			first := last
			n, err := pgx.ForEachRow(rows, []any{&seq, &id, &topic, &key, &kind, &source, &contentType, &at, &body}, func() error {
				last = seq
				return nil
			})
			if err != nil || n.RowsAffected() == 0 {
				return errors.Join(err, rows.Err())
			}
			done += int(n.RowsAffected())
			_, err = tx.Exec(ctx, "DELETE FROM waybill.waybill_outbox WHERE route = 'default' AND seq > $1 AND seq <= $2", first, last)
			return err
		})
		if err != nil {
			return s, err
		}
	}
	return sample{value: float64(c.backlog) / time.Since(started).Seconds(), msgs: c.backlog, cpu: readCPU().since(before)}, nil
}

// hotFront has three backlogs of one key in front of 20,000 messages of others, and a publisher that takes a
// millisecond a call. It reports when the others were out, and how fast the hot key goes in each fifth of the run.
func hotFront(ctx context.Context, env *servers, s scale) ([]row, error) {
	r := row{name: "others behind a hot key, until they are out", unit: "ms", target: "≤ 3 s"}
	rates := row{name: "hot key, publisher of 1 ms a call, last fifth of the run against the first", unit: "msg/s", target: "≥ 0.95"}
	for range s.pairs {
		db, err := env.database(ctx, postgres.Options{})
		if err != nil {
			return nil, err
		}
		out, per, err := runHotFront(ctx, db, s)
		db.close(ctx)
		if err != nil {
			return nil, err
		}
		r.ours, r.raw = append(r.ours, sample{value: out.Seconds()}), append(r.raw, sample{value: s.hot.Seconds()})
		rates.ours, rates.raw = append(rates.ours, sample{value: per[4]}), append(rates.raw, sample{value: per[0]})
		rates.note = fmt.Sprintf("msg/s of each fifth: %.0f", per)
	}
	r.note = fmt.Sprintf("the figure beside it is the length of the run, in which %d of one key stood in front", 3*s.backlog)
	return []row{r, rates}, nil
}

func runHotFront(ctx context.Context, db *database, s scale) (out time.Duration, per [5]float64, err error) {
	others := s.backlog / 5
	for _, c := range []drainCase{{backlog: 3 * s.backlog, body: 256, keys: 1}, {backlog: others, body: 256, keys: 1000, prefix: "other"}} {
		if err := stageBacklog(ctx, db, c); err != nil {
			return 0, per, err
		}
	}
	p := &slow{others: int64(others), out: make(chan struct{})}
	r, err := relay.New(db.outbox, p, relay.Options{})
	if err != nil {
		return 0, per, err
	}
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	g, runCtx := errgroup.WithContext(runCtx)
	started := time.Now()
	g.Go(func() error { return r.Run(runCtx) })
	g.Go(func() error {
		defer stop()
		last := int64(0)
		for i := range per {
			select {
			case <-time.After(s.hot / time.Duration(len(per))):
			case <-runCtx.Done():
				return nil
			}
			n := p.hot.Load()
			per[i], last = float64(n-last)/(s.hot.Seconds()/float64(len(per))), n
		}
		return nil
	})
	select {
	case <-p.out:
		out = time.Since(started)
	case <-runCtx.Done():
		out = s.hot // not within the run
	}
	return out, per, g.Wait()
}

// slow takes a millisecond a call, and counts.
type slow struct {
	nowhere
	hot, rest atomic.Int64
	others    int64
	out       chan struct{}
}

func (p *slow) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	<-time.After(time.Millisecond)
	for i := range batch {
		if batch[i].Key == "key-0" {
			p.hot.Add(1)
		} else if p.rest.Add(1) == p.others {
			close(p.out)
		}
	}
	return make(core.Results, len(batch))
}
