package redisstreams

import (
	"fmt"

	"github.com/waybill-go/waybill"
)

var (
	Classify   = classify
	BindingOf  = bindingOf
	ReadFields = decode
)

// Fields returns what Publish puts into an entry, names and values in turn.
func Fields(e *waybill.Envelope) []any {
	b, n := encode(nil, e)
	out := make([]any, 0, n)
	for len(b) > 0 {
		var size, head int
		switch {
		case b[0]&0xe0 == 0xa0:
			size, head = int(b[0]&0x1f), 1
		case b[0] == 0xda:
			size, head = int(b[1])<<8|int(b[2]), 3
		case b[0] == 0xdb:
			size, head = int(b[1])<<24|int(b[2])<<16|int(b[3])<<8|int(b[4]), 5
		default:
			panic(fmt.Sprintf("byte %#x is no string", b[0]))
		}
		out = append(out, string(b[head:head+size]))
		b = b[head+size:]
	}
	if len(out) != n {
		panic(fmt.Sprintf("%d values were counted as %d", len(out), n))
	}
	return out
}

// Attempt and the like show what else decode has found.
func (m *marks) Attempt() int { return m.attempt }
