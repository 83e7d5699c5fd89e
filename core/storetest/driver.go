package storetest

import (
	"cmp"
	"errors"
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

// maxSteps is how often the suite goes on where an operator's call or a cleaner says that there is more.
const maxSteps = 10_000

// member is a member that the suite plays.
type member struct{ core.Member }

// newMember returns a member that has not joined, and wishes so many partitions of each of its routes.
func newMember(partitions int, routes ...string) member {
	m := member{core.Member{Session: core.Session(rand.Int64N(math.MaxInt64) + 1), Name: "storetest", Lease: Timeout, Capacity: 1, FreeCapacity: 1}}
	for _, r := range routes {
		m.Routes = append(m.Routes, core.ServedRoute{Route: r, InitialPartitions: partitions})
	}
	return m
}

func (m *member) heartbeat(k *kit, x core.HeartbeatRequest) core.Membership {
	m.Heartbeats++
	x.Self = m.Member
	r, err := k.store.Heartbeat(k.ctx, x)
	k.must("heartbeat", err)
	return r
}

func (m *member) serves(route string) bool {
	return slices.ContainsFunc(m.Routes, func(s core.ServedRoute) bool { return s.Route == route })
}

// transfer moves those partitions of m's routes that are from's as change says.
func (m *member) transfer(k *kit, from core.Session, change func(t *core.Transfer)) core.Membership {
	var moves []core.Transfer
	for _, u := range m.heartbeat(k, core.HeartbeatRequest{}).Partitions {
		if m.serves(u.Partition.Route) && u.Owner == from {
			t := core.Transfer{Partition: u.Partition, From: from}
			change(&t)
			moves = append(moves, t)
		}
	}
	return m.heartbeat(k, core.HeartbeatRequest{Transfers: moves})
}

// give moves all partitions that are from's to to.
func (m *member) give(k *kit, from, to core.Session) core.Membership {
	return m.transfer(k, from, func(t *core.Transfer) { t.To = to })
}

// hold asks for records, each of which has an answer.
func (m *member) hold(k *kit, want core.HoldRequest) []core.HoldResult {
	got, err := k.store.Hold(k.ctx, m.Session, want)
	k.must("hold", err)
	k.failIf(len(got) != len(want.Refs), "hold answered %d records for %d refs", len(got), len(want.Refs))
	return got
}

// driver plays the engine, as simply as that goes: one member that owns all of the routes that it serves, reads them
// from the beginning each time, and holds each record that it hands out. A key waits for its record that is out.
type driver struct {
	mu sync.Mutex // a hand-out, a settle and a change of member exclude each other
	member
	out map[place]core.Record // what is handed out
}

type place struct {
	route string
	seq   int64
}

func newDriver() *driver {
	d := &driver{}
	d.begin()
	return d
}

// begin makes d a member that has not joined.
func (d *driver) begin() { d.member, d.out = newMember(0), map[place]core.Record{} }

// serve makes d the owner of all of the route.
func (d *driver) serve(k *kit) {
	if !d.serves(k.route) {
		d.Routes = append(d.Routes, core.ServedRoute{Route: k.route, InitialPartitions: 2})
		d.join(k)
	}
}

// own makes d the owner of the route, as a hand-out does.
func (d *driver) own(k *kit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serve(k)
}

// join joins, removes others, and then takes the free partitions of its routes.
func (d *driver) join(k *kit, remove ...core.Eviction) {
	d.heartbeat(k, core.HeartbeatRequest{Join: true, Evict: remove})
	for _, u := range d.give(k, 0, d.Session).Partitions {
		k.failIf(d.serves(u.Partition.Route) && u.Owner != d.Session,
			"partition %+v is of session %d, though nobody but %d serves its route", u.Partition, u.Owner, d.Session)
	}
}

// leave makes d a member no longer. It joins again when it is asked for something.
func (d *driver) leave(k *kit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.Routes) > 0 {
		d.heartbeat(k, core.HeartbeatRequest{Leave: true})
		d.begin()
	}
}

// die ends the session of d as another member would that takes it for dead. The session that follows owns the routes.
func (d *driver) die(k *kit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.member
	d.begin()
	d.Routes = old.Routes
	d.join(k, core.Eviction{Session: old.Session, Heartbeats: old.Heartbeats})
}

// passed notes in the partitions of d that the records have been looked at which the predecessor can have had out.
func (d *driver) passed(k *kit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.give(k, d.Session, d.Session)
}

func all(route string) []core.RouteSlots {
	return []core.RouteSlots{{Route: route, Slots: core.AllSlots}}
}

// hand hands out up to n records of the route, in order, and heeds what notices say.
func (d *driver) hand(k *kit, n int) []core.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serve(k)
	d.carryOut(k)
	due, err := k.store.Due(k.ctx, d.Session, all(k.route), n+len(d.out))
	k.must("due", err)
	found, waiting := d.read(k)
	found = append(found, due.Retries...)
	slices.SortFunc(found, func(a, b core.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return d.take(k, d.choose(found, waiting, due.Retries, n), due.Retries)
}

// read returns the ready records of the route and those that block its keys.
func (d *driver) read(k *kit) (ready []core.Record, waiting []core.BlockingRecord) {
	request := core.ReadRequest{
		NewlyOwned: all(k.route), BlockingLimit: pageSize, BlockingRoutes: k.blocks,
		Ranges: []core.Range{{RouteSlots: all(k.route)[0], UpToSeq: math.MaxInt64, Limit: pageSize}}, Bytes: math.MaxInt32,
	}
	for range maxPages {
		p, err := k.store.Read(k.ctx, d.Session, request)
		k.must("read", err)
		k.failIf(!p.IsMember, "session %d is not known, though nobody removed it", d.Session)
		k.failIf(len(p.Ranges) != len(request.Ranges), "%d answers to %d ranges", len(p.Ranges), len(request.Ranges))
		k.failIf(p.MoreBlocking && len(p.Blocking) == 0, "a page has no waiting record and says that there are more")
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
			return ready, waiting
		}
	}
	k.fail("%d pages of %d records each, and the last one says that there are more", maxPages, pageSize)
	return nil, nil
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
		foreign := r.HeldBy != 0 && r.HeldBy != d.Session
		if len(chosen) < n && !out && !foreign && (r.Envelope.Key == "" || !held[key{r.Route, r.Envelope.Key}]) {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// take holds the chosen records and returns those it got. A record that is locked or gone holds back its key. It
// releases its other holds, such as retries from Due.
func (d *driver) take(k *kit, chosen, retries []core.Record) (got []core.Record) {
	taken := d.hold(k, core.HoldRequest{Refs: suitetest.Each(chosen, func(r *core.Record) core.Ref { return r.Ref })})
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
	if len(surplus) > 0 {
		for i, err := range k.store.Settle(k.ctx, d.Session, surplus) {
			k.failIf(err != nil && !errors.Is(err, core.ErrLocked) && !errors.Is(err, core.ErrChanged),
				"let go of record %d of %d: %w", i, len(surplus), err)
		}
	}
	return got
}

// settle persists outcomes of records that are out. A busy one is sent again.
func (d *driver) settle(k *kit, outcomes []core.Outcome) core.Results {
	d.mu.Lock()
	defer d.mu.Unlock()
	res := k.store.Settle(k.ctx, d.Session, outcomes)
	for i := range res[:min(len(res), len(outcomes))] {
		for w := (suitetest.Wait{}); errors.Is(res[i], core.ErrLocked) && w.Again(k.ctx); {
			res[i] = k.store.Settle(k.ctx, d.Session, outcomes[i:i+1]).FirstErr()
		}
		if res[i] == nil {
			ref := outcomes[i].Ref()
			delete(d.out, place{ref.Route, ref.Seq})
		}
	}
	return res
}

// look reads the records in line on the route and changes nothing.
func (d *driver) look(k *kit) []core.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	ready, _ := d.read(k)
	return ready
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

// carryOut acts on the notices of the route and lets them go. A decision about what is out has to wait.
func (d *driver) carryOut(k *kit) {
	for _, n := range d.notices(k) {
		if n.Kind == core.NoticeDecide && !d.decide(k, &n) {
			continue
		}
		err := k.store.Settle(k.ctx, d.Session, []core.Outcome{core.DeleteNotice(&n)}).FirstErr()
		k.failIf(err != nil && !errors.Is(err, core.ErrChanged), "heed a notice: %w", err)
	}
}

func (d *driver) notices(k *kit) []core.Notice {
	p, err := k.store.Read(k.ctx, d.Session, core.ReadRequest{Slots: all(k.route), BlockingLimit: pageSize, Bytes: math.MaxInt32})
	k.must("read notices", err)
	return p.Notices
}

// decide carries out what an operator decided about a record, and reports whether that is done with.
func (d *driver) decide(k *kit, n *core.Notice) bool {
	if _, out := d.out[place{n.Route, n.Seq}]; out {
		return false
	}
	ref := core.Ref{Route: n.Route, Seq: n.Seq, ID: n.ID}
	p, err := k.store.Read(k.ctx, d.Session, core.ReadRequest{
		Slots: all(n.Route), Recheck: []core.Ref{ref}, BlockingLimit: pageSize, Bytes: math.MaxInt32,
	})
	k.must("read a record that was decided about", err)
	var r core.Record
	switch {
	case len(p.Rechecked) > 0:
		r = p.Rechecked[0]
	case len(p.RecheckedBlocking) > 0:
		r.Ref, r.Slot = p.RecheckedBlocking[0].Ref, p.RecheckedBlocking[0].Slot
	default:
		return true
	}
	err = k.store.Settle(k.ctx, d.Session, []core.Outcome{core.Cancel(&r, n.Reason)}).FirstErr()
	locked := errors.Is(err, core.ErrLocked)
	k.failIf(err != nil && !locked && !errors.Is(err, core.ErrChanged), "cancel a record that was decided about: %w", err)
	return !locked
}

// serveNotices carries out the notices of the route until stop is closed.
func (d *driver) serveNotices(k *kit, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.carryOut(k)
		}()
		k.sleep(pause)
	}
}
