// Package repeats bounds the copies of a message that a publisher sends again and again, since it learns no result, to
// a broker that drops what it has seen before: see core.PublisherTraits.TwoCopiesAtMost. Transports share it.
//
// # Guarantees
//
// The repeats of a message have one deduplication id until its result is known. Then the id is forgotten, so a message
// that is sent again on purpose arrives. While all results are known, a Memory costs next to nothing.
//
// # Concurrency
//
// A Memory is safe for concurrent use.
//
// # Ownership
//
// A Memory keeps no envelope.
//
// # Limits
//
// A Memory holds 10,000 messages. With more it forgets all, and each of them can have one copy more. A message is known
// by its source, id, topic, key and body. Another process does not know the ids of this one.
package repeats

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/waybill-go/waybill"
)

const maxMessages = 10_000

// Memory remembers the messages whose result is unknown. The zero value remembers none.
type Memory struct {
	n   atomic.Int64 // len(ids)
	mu  sync.Mutex
	ids map[message]string
}

// message is what makes two messages the same. An edited one is another.
type message struct {
	source, id string
	content    uint64
}

var seed = maphash.MakeSeed()

func messageOf(e *waybill.Envelope) message {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(e.Topic) // it never fails
	_ = h.WriteByte(0)
	_, _ = h.WriteString(e.Key)
	_ = h.WriteByte(0)
	_, _ = h.Write(e.Body)
	return message{e.Source, e.ID, h.Sum64()}
}

// ID returns the deduplication id that e has as a repeat; "" if it is none.
func (m *Memory) ID(e *waybill.Envelope) string {
	if m.n.Load() == 0 {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids[messageOf(e)]
}

// Note takes the result of sending e. After an outage the repeats of e have the id, or a new one if that is empty.
func (m *Memory) Note(e *waybill.Envelope, id string, err error) {
	unknown := err != nil && waybill.ClassOf(err) == waybill.ClassOutage
	if !unknown && m.n.Load() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := messageOf(e)
	switch _, known := m.ids[key]; {
	case !unknown:
		delete(m.ids, key)
	case !known:
		if m.ids == nil || len(m.ids) >= maxMessages {
			m.ids = map[message]string{}
		}
		if id == "" {
			id = waybill.NewID()
		}
		key.source, key.id = strings.Clone(key.source), strings.Clone(key.id)
		m.ids[key] = id
	}
	m.n.Store(int64(len(m.ids)))
}
