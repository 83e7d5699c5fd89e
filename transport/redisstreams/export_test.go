package redisstreams

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var (
	Classify   = classify
	BindingOf  = bindingOf
	ReadFields = decode
)

// LookForDead makes the next Receive of r look for what dead receivers hold, instead of within five seconds.
func LookForDead(r core.Receiver) { LookForDeadIn(r, 0) }

// LookForDeadIn makes r look for what dead receivers hold after d.
func LookForDeadIn(r core.Receiver, d time.Duration) {
	if own, ok := r.(*receiver); ok {
		own.mu.Lock()
		defer own.mu.Unlock()
		own.nextReclaim = time.Now().Add(d)
	}
}

// Fields returns what Publish puts into an entry, names and values in turn.
func Fields(e *waybill.Envelope) []any {
	list := appendFields(nil, e)
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

// Attempt and the like show what else decode has found.
func (m *marks) Attempt() int { return m.attempt }
