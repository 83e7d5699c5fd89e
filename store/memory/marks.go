package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Marks is a [core.MarkStore] in memory, for tests and as the reference for adapters. The zero value is ready. A mark
// that is over is removed when its key comes again, so Marks grows with the number of messages.
type Marks struct {
	mu    sync.Mutex
	marks map[core.InboxKey]mark // by keys without a hash
}

// mark is a claim, or, without a token, a key that is done.
type mark struct {
	token string
	until time.Time // zero = for ever
	hash  string
}

var errBusyMark = &waybill.Error{Op: "waybill/memory: marks", Class: waybill.ClassRejected, Err: fmt.Errorf("another run has the message (%w)", waybill.ErrInFlight)}

// of returns the mark of key, unless its time is over. mu is held.
func (m *Marks) of(key core.InboxKey) (mark, bool) {
	k, ok := m.marks[key.WithoutHash()]
	return k, ok && (k.until.IsZero() || time.Now().Before(k.until))
}

func (m *Marks) put(key core.InboxKey, k mark) {
	if m.marks == nil {
		m.marks = map[core.InboxKey]mark{}
	}
	k.hash = key.ContentHash
	m.marks[key.WithoutHash()] = k
}

// begin is how every method begins.
func (m *Marks) begin(ctx context.Context, key core.InboxKey) error {
	if err := core.CheckInboxKeys(key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return outage("marks", err)
	}
	return nil
}

// BeginMark claims key, as core.MarkStore says.
func (m *Marks) BeginMark(ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
	if err := m.begin(ctx, key); err != nil {
		return core.InboxNone, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch k, ok := m.of(key); {
	case ok && k.token == "":
		return key.StatusOfMarked([]byte(k.hash)), nil
	case ok && k.token != token:
		return core.InboxNone, errBusyMark
	}
	m.put(key, mark{token: token, until: time.Now().Add(lease)})
	return core.InboxNew, nil
}

// FinishMark marks key as done, as core.MarkStore says.
func (m *Marks) FinishMark(ctx context.Context, key core.InboxKey, keep time.Duration) error {
	if err := m.begin(ctx, key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var k mark
	if keep > 0 {
		k.until = time.Now().Add(keep)
	}
	m.put(key, k)
	return nil
}

// ForgetMark ends a claim, as core.MarkStore says.
func (m *Marks) ForgetMark(ctx context.Context, key core.InboxKey, token string) error {
	if err := m.begin(ctx, key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if key = key.WithoutHash(); m.marks[key].token == token {
		delete(m.marks, key)
	}
	return nil
}
