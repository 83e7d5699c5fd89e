package relay

import (
	"maps"
	"slices"

	"github.com/waybill-go/waybill/dispatch"
)

// Key order on a pipelining publisher: within one call the records of a key keep their order, between two calls they do
// not. So a key is in one call at a time. mustWaitBehindKey keeps a record out of a call, fillBehindKey gives it to the
// next call, and freeBehindKey releases it when the key failed, the route pauses or the relay stops.

// keys knows the keys of a route whose publisher pipelines. Such a publisher keeps the order inside a call only. So
// records of a key that is in a call wait in behindKey until that call has its results. For the dispatcher they are
// out.
type keys struct {
	flying    map[string]int              // by key: records in calls
	behindKey map[string][]*dispatch.Item // waiting records, by key, in order
}

// mustWaitBehindKey reports whether an item must wait because records of its key are in another call, or wait
// themselves. In the call of its own key it follows them.
func (e *engine) mustWaitBehindKey(c *call, item *dispatch.Item) bool {
	key := item.Record.Envelope.Key
	if !c.route.pipelined || key == "" {
		return false
	}
	if len(c.route.keys.behindKey[key]) > 0 {
		return true
	}
	return c.route.keys.flying[key] > 0 && !slices.ContainsFunc(c.items, func(o *dispatch.Item) bool { return o.Record.Envelope.Key == key })
}

// freeBehindKey releases the waiting records of some keys of a route, or of all if none is named. The last of a key
// goes back first: each one goes back in front of it.
func (e *engine) freeBehindKey(rt *route, keys ...string) {
	if len(rt.keys.behindKey) == 0 {
		return
	}
	if len(keys) == 0 {
		keys = slices.Sorted(maps.Keys(rt.keys.behindKey))
	}
	for _, key := range keys {
		items := rt.keys.behindKey[key]
		delete(rt.keys.behindKey, key)
		for _, item := range slices.Backward(items) {
			e.release(item, false)
		}
	}
}
