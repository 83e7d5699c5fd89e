package dispatch

import "github.com/waybill-go/waybill/core"

// rejoin ends the session: what it held is somebody else's now. What is out is not taken back; its outcomes are
// ignored.
func (d *Dispatcher) rejoin() {
	d.session = 0
	d.self.reset()
	d.peers.reset()
	d.presence.reset()
	d.calls.reset()
	d.db.reset()
	d.reads.reset()
	d.timers.reset()
	d.holds.reset()
	d.settles.reset()
	d.controls.reset()
	d.giving.reset()
	d.work.out = 0
	for i, rt := range d.routes {
		d.tellLost(rt)
		for _, item := range rt.known {
			item.lost = true
		}
		fresh := newRoute(d.env, rt.Route)
		fresh.topics.blocked, fresh.shut = rt.topics.blocked, rt.shut
		d.routes[i], d.byName[rt.Name] = fresh, fresh
	}
}

// tell says what became of an item that was handed out.
func (d *Dispatcher) tell(item *Item, err error) {
	if d.opts.Settled != nil {
		d.opts.Settled(item, err)
	}
}

// tellLost says that all that is out, or on its way to the store, is lost with the session.
func (d *Dispatcher) tellLost(rt *route) {
	for _, seq := range sortedSeqs(rt.known) {
		if item := rt.known[seq]; item.isBusy() {
			d.tell(item, core.ErrFenced)
		}
	}
}
