package relay

// Nothing stops at a bound of the dispatcher's memory, but it costs speed. The log says once when that begins, and when
// it ends.

// noteBound notes whether a bound of a route's memory is reached.
func (e *engine) noteBound(rt *route) {
	at := e.d.AtBound(rt.Name)
	if at == rt.atBound {
		return
	}
	if at == "" {
		e.log.Info("no bound of memory is reached any more", "event", "relay.bound_left", "route", rt.Name)
	} else {
		e.log.Warn("a bound of memory is reached; nothing stops, but it costs speed", "event", "relay.at_bound", "route", rt.Name, "cost", at)
	}
	rt.atBound = at
}
