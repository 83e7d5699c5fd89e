package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// pageSize bounds what the driver reads at a time, and maxPages how often it follows a page that says that there is
// more.
const (
	pageSize = 1000
	maxPages = 1000
)

// driver plays the engine, as simply as that goes: one member that owns all of the routes that it serves, reads them
// from the beginning each time, and holds each record that it hands out. A key waits for its record that is out.
type driver struct {
	store core.OutboxStore

	mu   sync.Mutex // a hand-out, a settle and a change of member exclude each other
	self core.Member
	out  map[place]core.Record // what is handed out
}

type place struct {
	route string
	seq   int64
}

func newDriver(s core.OutboxStore) *driver {
	d := &driver{store: s}
	d.begin()
	return d
}

// begin makes d a member that has not joined.
func (d *driver) begin() {
	d.out = map[place]core.Record{}
	d.self = core.Member{Session: core.Session(rand.Int64N(math.MaxInt64) + 1), Name: "storetest", Lease: Timeout, Capacity: 1, FreeCapacity: 1}
}

// serve makes d the owner of all of the route.
func (d *driver) serve(ctx context.Context, route string) error {
	if d.serves(route) {
		return nil
	}
	d.self.Routes = append(d.self.Routes, core.ServedRoute{Route: route, InitialPartitions: 2})
	return d.join(ctx)
}

// own makes d the owner of route, as a hand-out does.
func (d *driver) own(ctx context.Context, route string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.serve(ctx, route)
}

// join joins, removes others, and then takes the free partitions of its routes.
func (d *driver) join(ctx context.Context, remove ...core.Eviction) error {
	d.self.Heartbeats++
	membership, err := d.store.Heartbeat(ctx, core.HeartbeatRequest{Self: d.self, Join: true, Evict: remove})
	if err != nil {
		return err
	}
	d.self.Heartbeats++
	then := core.HeartbeatRequest{Self: d.self}
	for _, u := range membership.Partitions {
		if d.serves(u.Partition.Route) && u.Owner == 0 {
			then.Transfers = append(then.Transfers, core.Transfer{Partition: u.Partition, To: d.self.Session})
		}
	}
	membership, err = d.store.Heartbeat(ctx, then)
	for _, u := range membership.Partitions {
		if d.serves(u.Partition.Route) && u.Owner != d.self.Session {
			return fmt.Errorf("partition %+v is of session %d, though nobody but %d serves its route", u.Partition, u.Owner, d.self.Session)
		}
	}
	return err
}

func (d *driver) serves(route string) bool {
	return slices.ContainsFunc(d.self.Routes, func(s core.ServedRoute) bool { return s.Route == route })
}

// leave makes d a member no longer. It joins again when it is asked for something.
func (d *driver) leave(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.self.Routes) == 0 {
		return nil
	}
	_, err := d.store.Heartbeat(ctx, core.HeartbeatRequest{Self: d.self, Leave: true})
	d.begin()
	return err
}

// die ends the session of d as another member would that takes it for dead. The session that follows owns the routes.
func (d *driver) die(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.self
	d.begin()
	d.self.Routes = old.Routes
	return d.join(ctx, core.Eviction{Session: old.Session, Heartbeats: old.Heartbeats})
}

// passed notes in the partitions of d that the records have been looked at which the predecessor can have had out.
func (d *driver) passed(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.self.Heartbeats++
	membership, err := d.store.Heartbeat(ctx, core.HeartbeatRequest{Self: d.self})
	if err != nil {
		return err
	}
	var moves []core.Transfer
	for _, u := range membership.Partitions {
		if u.Owner == d.self.Session {
			moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: u.Owner})
		}
	}
	d.self.Heartbeats++
	_, err = d.store.Heartbeat(ctx, core.HeartbeatRequest{Self: d.self, Transfers: moves})
	return err
}

func all(route string) []core.RouteSlots {
	return []core.RouteSlots{{Route: route, Slots: core.AllSlots}}
}

// hand hands out up to n records of route, in order, and heeds what notices say.
func (d *driver) hand(ctx context.Context, route string, n int, blocks []string) ([]core.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.serve(ctx, route); err != nil {
		return nil, fmt.Errorf("meet: %w", err)
	}
	if err := d.carryOut(ctx, route); err != nil {
		return nil, err
	}
	due, err := d.store.Due(ctx, d.self.Session, all(route), n+len(d.out))
	if err != nil {
		return nil, fmt.Errorf("due: %w", err)
	}
	found, waiting, err := d.read(ctx, route, blocks)
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	found = append(found, due.Retries...)
	slices.SortFunc(found, func(a, b core.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	chosen := d.choose(found, waiting, due.Retries, n)
	return d.take(ctx, chosen, due.Retries)
}

// read returns the ready records of route and those that block its keys.
func (d *driver) read(ctx context.Context, route string, blocks []string) (ready []core.Record, waiting []core.BlockingRecord, err error) {
	request := core.ReadRequest{
		NewlyOwned: all(route), BlockingLimit: pageSize, BlockingRoutes: blocks,
		Ranges: []core.Range{{RouteSlots: all(route)[0], UpToSeq: math.MaxInt64, Limit: pageSize}}, Bytes: math.MaxInt32,
	}
	for n := 0; ; n++ {
		p, err := d.store.Read(ctx, d.self.Session, request)
		switch {
		case err != nil:
			return nil, nil, err
		case n > maxPages:
			return nil, nil, fmt.Errorf("%d pages of %d records each, and the last one says that there are more", n, pageSize)
		case !p.IsMember:
			return nil, nil, fmt.Errorf("session %d is not known, though nobody removed it", d.self.Session)
		case len(p.Ranges) != len(request.Ranges):
			return nil, nil, fmt.Errorf("%d answers to %d ranges", len(p.Ranges), len(request.Ranges))
		}
		if p.MoreBlocking && len(p.Blocking) == 0 {
			return nil, nil, errors.New("a page has no waiting record and says that there are more")
		}
		waiting = append(waiting, p.Blocking...)
		if p.MoreBlocking {
			request.NewlyOwnedAfter = p.Blocking[len(p.Blocking)-1].Seq
		} else {
			request.NewlyOwned = nil
		}
		rs := p.Ranges[0].Records
		ready = append(ready, rs...)
		if len(rs) > 0 {
			request.Ranges[0].AfterSeq = rs[len(rs)-1].Seq
		}
		if !p.Ranges[0].More && request.NewlyOwned == nil {
			return ready, waiting, nil
		}
	}
}

// choose returns the first n of found that are not out and whose keys nothing holds.
func (d *driver) choose(found []core.Record, waiting []core.BlockingRecord, retries []core.Record, n int) (chosen []core.Record) {
	type key struct{ route, key string }
	held := map[key]bool{}
	for _, r := range d.out {
		held[key{r.Route, r.Envelope.Key}] = true
	}
	for _, w := range waiting {
		if !slices.ContainsFunc(retries, func(r core.Record) bool { return r.Seq == w.Seq }) {
			held[key{w.Route, w.Key}] = true
		}
	}
	for _, r := range found {
		_, out := d.out[place{r.Route, r.Seq}]
		foreign := r.HeldBy != 0 && r.HeldBy != d.self.Session
		if len(chosen) < n && !out && !foreign && (r.Envelope.Key == "" || !held[key{r.Route, r.Envelope.Key}]) {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// take holds the chosen records and returns those it got. A record that is locked or gone holds back its key. It
// releases its other holds, such as retries from Due.
func (d *driver) take(ctx context.Context, chosen, retries []core.Record) (got []core.Record, err error) {
	want := core.HoldRequest{}
	for i := range chosen {
		want.Refs = append(want.Refs, chosen[i].Ref)
	}
	taken, err := d.store.Hold(ctx, d.self.Session, want)
	if err != nil {
		return nil, fmt.Errorf("hold: %w", err)
	}
	if len(taken) != len(chosen) {
		return nil, fmt.Errorf("hold answered %d records for %d", len(taken), len(chosen))
	}
	held := slices.Clone(retries)
	missed := map[string]bool{}
	for i, r := range chosen {
		switch granted := taken[i].Status == core.HoldGranted; {
		case !granted:
			missed[r.Envelope.Key] = true
		case r.Envelope.Key != "" && missed[r.Envelope.Key]:
			held = append(held, r)
		default:
			d.out[place{r.Route, r.Seq}] = r
			got = append(got, r)
		}
	}
	var surplus []core.Outcome
	for i := range held {
		if _, out := d.out[place{held[i].Route, held[i].Seq}]; !out {
			surplus = append(surplus, core.Release(&held[i], 0, false))
		}
	}
	if len(surplus) == 0 {
		return got, nil
	}
	for i, err := range d.store.Settle(ctx, d.self.Session, surplus) {
		if err != nil && !errors.Is(err, core.ErrLocked) && !errors.Is(err, core.ErrChanged) {
			return nil, fmt.Errorf("let go of record %d of %d: %w", i, len(surplus), err)
		}
	}
	return got, nil
}

// settle persists outcomes of records that are out. A busy one is sent again.
func (d *driver) settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	d.mu.Lock()
	defer d.mu.Unlock()
	res := d.store.Settle(ctx, d.self.Session, outcomes)
	for i := range res {
		if i >= len(outcomes) {
			break
		}
		for w := (suitetest.Wait{}); errors.Is(res[i], core.ErrLocked) && w.Again(ctx); {
			res[i] = d.store.Settle(ctx, d.self.Session, outcomes[i:i+1]).FirstErr()
		}
		if res[i] == nil {
			ref := outcomes[i].Ref()
			delete(d.out, place{ref.Route, ref.Seq})
		}
	}
	return res
}

// look reads the records in line on route and changes nothing.
func (d *driver) look(ctx context.Context, route string) ([]core.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ready, _, err := d.read(ctx, route, nil)
	return ready, err
}

// promise hands out rs as engines mostly do, without a hold.
func (d *driver) promise(rs []core.Record) []core.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range rs {
		d.out[place{r.Route, r.Seq}] = r
	}
	return rs
}
