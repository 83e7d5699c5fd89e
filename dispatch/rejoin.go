package dispatch

import (
	"slices"

	"github.com/waybill-go/waybill/core"
)

// A member that others have removed, or whose database was restored, begins anew as another session. It must not trust
// anything that it remembers: its partitions have other owners, and its numbers may be of another life of the database.
// Only the records that it has handed out are still at work here, and their outcomes are ignored.

// rejoin ends the session: its records belong to others now. Items that are out are not taken back; their outcomes are
// ignored.
func (d *Dispatcher) rejoin() {
	d.session, d.gathering = 0, false
	d.self.reset()
	d.peers.reset()
	d.presence.reset()
	d.calls.reset()
	d.db.reset()
	d.reads.reset()
	d.timers.reset()
	d.settles.reset()
	d.notices.reset()
	d.releases.reset()
	d.work.out = 0
	for i, rt := range d.routes {
		d.tellLost(rt)
		for _, item := range rt.known {
			item.lost = true
		}
		fresh := newRoute(d.env, rt.Route)
		fresh.topics.paused, fresh.shut = rt.topics.paused, rt.shut
		d.routes[i], d.byName[rt.Name] = fresh, fresh
	}
}

// giveUpJoin ends a session whose Join has no answer: the next Join is for a new session. The lost one may be executed
// at any time. After others have removed its session, it would bring the session back, and nothing would fence a
// process that still works for it. No process works for a session that was given up, and it is removed at once.
func (d *Dispatcher) giveUpJoin() {
	d.self.givenUp = append(d.self.givenUp, d.session)
	if n := len(d.self.givenUp); n > maxGivenUp {
		d.self.givenUp = slices.Clone(d.self.givenUp[n-maxGivenUp:])
	}
	d.session = 0
	d.self.reset()
}

// tell reports the result of an item that was handed out.
func (d *Dispatcher) tell(item *Item, err error) {
	if d.opts.Settled != nil {
		d.opts.Settled(item, err)
	}
}

// tellLost reports that all items that are out, or on their way to the store, are lost with the session.
func (d *Dispatcher) tellLost(rt *route) {
	for _, seq := range sortedSeqs(rt.known) {
		if item := rt.known[seq]; item.isBusy() {
			d.tell(item, core.ErrFenced)
		}
	}
}
