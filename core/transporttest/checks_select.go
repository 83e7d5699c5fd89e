package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/content"
	"github.com/waybill-go/waybill/internal/sleep"
)

// How operators look at parked messages, select and edit them. RM-08 OP-15.
var selectChecks = []named{
	{"parked-inspect", ofSubscriber, parkedInspect},
	{"parked-filters", ofSubscriber, parkedFilters},
	{"parked-edit", ofSubscriber, parkedEdit},
}

// An inspection shows one message with its body, and a count shows the reasons.
//
// The check looks at one message with its body, by id and by position, and counts by reason. RM-08 OP-15.
func parkedInspect(k *kit) {
	q := k.parkedQueue()
	_, name, want := k.park(func(name string) []waybill.Envelope {
		return append([]waybill.Envelope{full(name + ".a")}, messages(name+".b", 3)...)
	})
	for i, p := range k.list(name, admin.ParkedFilter{}, 10) {
		k.failIf(p.Position != i+1, "message %d of the list has position %d", i, p.Position)
	}
	for what, f := range map[string]admin.ParkedFilter{
		"by id":       {IDs: []string{want[2].ID}},
		"by position": {Positions: []int{3}},
	} {
		p, err := q.InspectParked(k.ctx, name, f)
		k.must("inspect "+what, err)
		k.same(want[2], p.Envelope, "inspected "+what)
		k.failIf(p.Position != 3 || p.Reason != waybill.ReasonRejected || p.Error != "no good",
			"inspected %s: position %d, reason %q, error %q", what, p.Position, p.Reason, p.Error)
	}
	p, err := q.InspectParked(k.ctx, name, admin.ParkedFilter{})
	k.must("inspect the oldest", err)
	k.same(want[0], p.Envelope, "the oldest")
	if _, err := q.InspectParked(k.ctx, name, admin.ParkedFilter{IDs: []string{"nobody"}}); !errors.Is(err, waybill.ErrNotFound) {
		k.fail("inspect what is not there: %w", err)
	}
	counts, err := q.CountParked(k.ctx, name)
	k.must("count by reason", err)
	k.failIf(len(counts) != 1 || counts[waybill.ReasonRejected] != len(want),
		"counted %v, want %d rejected", counts, len(want))
	k.depth(name, len(want))
}

// Filters by key, tenant, error, time and position select what fits.
//
// The check selects by key, tenant, error, time and position. RM-08 OP-15.
func parkedFilters(k *kit) {
	r, name := k.queue("a")
	batch := messages(name+".a", 4)
	batch[0].Key, batch[1].Key, batch[2].Tenant, batch[3].Tenant = "k0", "k1", "t2", "t3"
	k.publish(batch...)
	var parked []string
	for range batch {
		d := k.receive(r, 1)[0]
		parked = append(parked, d.Envelope.ID)
		k.settle(r, core.AckReject(d, waybill.ReasonRejected, fmt.Errorf("no %s%s", d.Envelope.Key, d.Envelope.Tenant)))
		_ = sleep.For(k.ctx, 5*time.Millisecond) // parked at another time
	}
	k.depth(name, len(batch))
	all := k.list(name, admin.ParkedFilter{}, 10)
	k.failIf(len(all) != len(batch), "%d messages are listed, want %d", len(all), len(batch))
	at := func(places ...int) (positions []int) { // of some of batch
		for _, i := range places {
			positions = append(positions, slices.Index(parked, batch[i].ID)+1)
		}
		slices.Sort(positions)
		return positions
	}
	third := all[2]
	for what, c := range map[string]struct {
		f    admin.ParkedFilter
		want []int
	}{
		"keys":               {admin.ParkedFilter{Keys: []string{"k0", "k1"}}, at(0, 1)},
		"tenant":             {admin.ParkedFilter{Tenants: []string{"t3"}}, at(3)},
		"error":              {admin.ParkedFilter{Error: "o k1"}, at(1)},
		"since":              {admin.ParkedFilter{Since: third.At}, []int{3, 4}},
		"until":              {admin.ParkedFilter{Until: third.At}, []int{1, 2}},
		"position":           {admin.ParkedFilter{Positions: []int{1, 4}}, []int{1, 4}},
		"position and time":  {admin.ParkedFilter{Positions: []int{3}, Since: third.At, Until: third.At.Add(1)}, []int{3}},
		"position, not time": {admin.ParkedFilter{Positions: []int{3}, Until: third.At}, nil},
	} {
		var got []int
		for _, p := range k.list(name, c.f, 10) {
			got = append(got, p.Position)
		}
		k.failIf(!slices.Equal(got, c.want), "by %s: positions %v are listed, want %v", what, got, c.want)
	}
	n, err := k.parkedQueue().PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, Filter: admin.ParkedFilter{Positions: at(0, 2)}})
	k.must("purge by position", err)
	k.failIf(n != 2, "purged %d messages by two positions", n)
	k.depth(name, 2)
	k.replay(admin.ParkedRequest{Queue: name, Filter: admin.ParkedFilter{Tenants: []string{"t3"}}}, 1)
	k.exactly(batch[3:], k.consume(r, 1))
	k.replay(admin.ParkedRequest{Queue: name, All: true}, 1)
	k.exactly(batch[1:2], k.consume(r, 1))
}

// A replay edits bodies, leaves the messages that the edit refuses, and tells the fate of each message.
//
// The check replays messages with another body, leaves those that the edit refuses, and tells what became of each.
// RM-08 OP-15.
func parkedEdit(k *kit) {
	r, name, want := k.park(func(name string) []waybill.Envelope {
		return append([]waybill.Envelope{full(name + ".a")}, messages(name+".b", 2)...)
	})
	errStays := errors.New("not this one")
	results := map[string]error{}
	bodies := 0
	k.replay(admin.ParkedRequest{
		Queue: name, All: true,
		Edit: func(p admin.Parked) ([]byte, error) {
			if p.Envelope.ID == want[1].ID {
				return nil, errStays
			}
			return append([]byte("fixed: "), p.Envelope.Body...), nil
		},
		Result: func(p admin.Parked, err error) {
			bodies += len(p.Envelope.Body)
			results[p.Envelope.ID] = err
		},
	}, 2)
	k.failIf(bodies > 0, "results show bodies")
	k.failIf(len(results) != 3 || results[want[0].ID] != nil || !errors.Is(results[want[1].ID], errStays) || results[want[2].ID] != nil,
		"the results are %v", results)
	var fixed []waybill.Envelope
	for _, i := range []int{0, 2} {
		e := want[i].Clone()
		e.Body = append([]byte("fixed: "), e.Body...)
		fixed = append(fixed, e)
	}
	got := k.consume(r, 2)
	k.exactly(fixed, got)
	for _, d := range got { // an adapter may leave the header out, not tell another print
		original := want[0]
		if d.Envelope.ID == want[2].ID {
			original = want[2]
		}
		if was, ok := content.Before(&d.Envelope); ok && was != content.Hash(&original, false) {
			k.fail("message %s says that it was another one before its repair", d.Envelope.ID)
		}
	}
	k.depth(name, 1)
	purged := 0
	n, err := k.parkedQueue().PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, All: true, Result: func(p admin.Parked, err error) {
		if p.Envelope.ID == want[1].ID && err == nil {
			purged++
		}
	}})
	k.must("purge", err)
	k.failIf(n != 1 || purged != 1, "purged %d messages, and %d results say so", n, purged)
}
