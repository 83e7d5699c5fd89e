package redisstreams

import "github.com/waybill-go/waybill"

var (
	Classify   = classify
	BindingOf  = bindingOf
	ReadFields = decode
)

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
