package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// maxName is Kafka's limit for the name of a topic; maxQueue is for the name of a queue in it.
const (
	maxName  = 249
	maxQueue = 160
)

// bad reports whether c cannot stand in a name: Kafka refuses it, takes _ for a dot, or escape needs it.
func bad(c byte) bool {
	return c != '-' && c != '.' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z')
}

// escape returns the name of a queue as a part of a topic's name. A name that becomes too long ends in its hash.
func escape(queue string) string {
	var out []byte
	for i := range len(queue) {
		if c := queue[i]; bad(c) {
			out = fmt.Appendf(out, "_%02X", c)
		} else {
			out = append(out, c)
		}
	}
	if len(out) > maxQueue {
		sum := sha256.Sum256([]byte(queue))
		out = append(append(out[:maxQueue-34], "__"...), hex.EncodeToString(sum[:16])...)
	}
	return string(out)
}

// The names of a bus: its own log, that of the bindings, and those of a queue, which is a consumer group of its name.
func (o *Options) bindings() string           { return o.Bus + ".bindings" }
func (o *Options) group(queue string) string  { return o.Bus + "." + escape(queue) }
func (o *Options) retry(queue string) string  { return o.Bus + ".retry." + escape(queue) }
func (o *Options) parked(queue string) string { return o.Bus + ".parked." + escape(queue) }
