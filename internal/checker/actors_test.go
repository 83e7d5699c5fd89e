package checker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/store/memory"
)

// produce stages messages in transactions, some of which stay open for long or roll back.
func (w *world) produce(i int) {
	d := checker.NewDice(w.seed, uint64(10+i), &w.calm)
	n := 0
	var mine []waybill.Message
	replaced := map[string]checker.Ref{} // the newest of each dedupe key, which is this producer's own
	for range w.txs {
		time.Sleep(d.Up(w.lasts / time.Duration(w.txs)))
		led, tx := w.l.Begin(), w.mem.Begin()
		before := maps.Clone(replaced)
		var fresh []checker.Ref
		var msgs []waybill.Message
		ok := true
		key := ""
		if d.N(2) == 0 { // several of one key
			key = "k" + strconv.Itoa(d.N(w.keys))
		}
		for range 1 + d.N(4) {
			n++
			m := w.message(d, fmt.Sprintf("p%d-%03d", i, n))
			if key != "" {
				m.Key = key
			}
			if d.N(8) == 0 {
				w.inVain(led, tx, m)
			}
			again := len(mine) > 0 && !w.cancels && d.N(12) == 0
			if again {
				m = mine[d.N(len(mine))]
			} else if w.cancels && d.N(6) == 0 {
				m.DedupeKey, m.Replace = fmt.Sprintf("p%d-d%d", i, d.N(2)), d.N(2) == 0
			}
			staged, err := w.mem.Stage(w.t.Context(), tx, m)
			if err != nil {
				w.t.Errorf("stage: %v", err)
				ok = false
				break
			}
			ref := checker.Ref{Route: staged[0].Route, ID: staged[0].ID}
			if m.Replace && staged[0].Replaced != waybill.CancelNotFound {
				led.Cancelled(replaced[ref.Route+m.Topic+m.DedupeKey], staged[0].Replaced)
			}
			if again {
				led.Again(&m, staged[0])
				continue // the first one counts
			}
			led.Staged(&m, staged[0])
			if !staged[0].Duplicate {
				fresh, msgs = append(fresh, ref), append(msgs, m)
				if m.DedupeKey != "" {
					replaced[ref.Route+m.Topic+m.DedupeKey] = ref
				}
			}
			switch {
			case w.long && d.N(6) == 0: // watched one by one
				time.Sleep(time.Second + d.Up(w.lasts/2))
			case d.N(4) == 0:
				time.Sleep(d.Up(time.Second))
			}
		}
		if !ok || d.N(6) == 0 {
			led.Rollback(tx.Rollback)
			replaced = before
			continue
		}
		if err := led.Commit(tx.Commit); err != nil {
			w.t.Errorf("commit: %v", err)
			continue
		}
		mine = append(mine, msgs...)
		w.mu.Lock()
		w.refs = append(w.refs, fresh...)
		w.mu.Unlock()
	}
}

// inVain stages a message like m and rolls it back alone.
func (w *world) inVain(led *checker.Tx, tx *memory.Tx, m waybill.Message) {
	at, sp := led.Savepoint(), tx.Savepoint()
	m.ID += "-in-vain"
	staged, err := w.mem.Stage(w.t.Context(), tx, m)
	if err != nil {
		w.t.Errorf("stage: %v", err)
		return
	}
	led.Staged(&m, staged[0])
	if err := tx.RollbackTo(sp); err != nil {
		w.t.Errorf("rollback to a savepoint: %v", err)
	}
	led.RollbackTo(at)
}

// message returns a random message.
func (w *world) message(d *checker.Dice, id string) waybill.Message {
	key := ""
	switch k := d.N(10); {
	case k < 4:
		key = "hot"
	case k < 9:
		key = "k" + strconv.Itoa(d.N(w.keys))
	}
	m := waybill.RawMessage("t."+strconv.Itoa(d.N(2)), "text/plain", []byte(id), waybill.ID(id), waybill.Key(key), waybill.Routes(w.routes[d.N(len(w.routes))].Name))
	if d.N(6) == 0 {
		m.Delay = time.Millisecond + d.Up(5*time.Second)
	}
	if w.skew == 0 && d.N(12) == 0 {
		m.TTL = time.Millisecond + d.Up(6*time.Second)
	}
	return m
}

// delivery is what a consumer gets.
type delivery struct {
	route string
	env   waybill.Envelope
}

var errHandler = errors.New("checker: the handler fails")

// consume handles deliveries with an effect each, some of them several times and side by side.
func (w *world) consume(d *checker.Dice, from <-chan *delivery) {
	for x := range from {
		var again sync.WaitGroup
		if d.N(10) == 0 {
			again.Go(func() { w.handle(d, x) })
		}
		w.handle(d, x)
		again.Wait()
		if d.N(10) == 0 { // the ack was lost
			w.handle(d, x)
		}
	}
}

// handle retries until it succeeds.
func (w *world) handle(d *checker.Dice, x *delivery) {
	key := core.InboxKey{Consumer: x.route, Source: x.env.Source, ID: x.env.ID}
	once := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = errHandler
			}
		}()
		_, err = w.inbox.Do(w.t.Context(), key, func(_ context.Context, tx *memory.Tx) error {
			if d.Roll(50) {
				return errHandler
			}
			name := x.route + "/" + x.env.ID
			n, _ := tx.Get(name)
			time.Sleep(d.Up(5 * time.Millisecond))
			tx.Put(name, n+"x")
			if d.Roll(20) {
				panic("a fault")
			}
			if d.Roll(50) {
				return errHandler
			}
			return nil
		})
		return err
	}
	for once() != nil {
	}
}
