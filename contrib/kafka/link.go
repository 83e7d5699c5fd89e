package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
)

// link is what a client says about its connections. The client tries again by itself, and tells its callers nothing.
type link struct {
	mu    sync.Mutex
	err   error     // of the last attempt
	since time.Time // of the first that failed since one succeeded
	quota time.Time // until then a quota has the client wait
}

var (
	_ kgo.HookBrokerConnect  = (*link)(nil)
	_ kgo.HookBrokerRead     = (*link)(nil)
	_ kgo.HookBrokerThrottle = (*link)(nil)
)

func (l *link) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.err == nil {
		l.since = time.Now()
	}
	l.err = err
}

// OnBrokerConnect is called by the client.
func (l *link) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		l.note(err)
	}
}

// OnBrokerRead is called by the client.
func (l *link) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	if err == nil {
		l.note(nil)
	}
}

// OnBrokerThrottle is called by the client: a broker has it wait before the next request.
func (l *link) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quota = time.Now().Add(d)
}

// moment is for how long a lost connection is not worth a word.
const moment = 2 * time.Second

// broken returns the error of a link that has failed for longer than a moment.
func (l *link) broken(op string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || time.Since(l.since) < moment {
		return nil
	}
	return classify(op, l.err)
}

// because returns err, the end of a wait, with the last error of the link, or the quota that it met.
func (l *link) because(op string, err error) *waybill.Error {
	l.mu.Lock()
	cause := l.err
	if left := time.Until(l.quota); cause == nil && left > 0 {
		cause = fmt.Errorf("the brokers have this client wait for %s, by a quota of its user or client id: raise producer_byte_rate, "+
			"consumer_byte_rate or request_percentage", left.Round(time.Millisecond))
	}
	l.mu.Unlock()
	if cause == nil || errors.Is(err, cause) || !matches(err, context.Canceled, context.DeadlineExceeded) {
		return classify(op, err)
	}
	e := classify(op, cause)
	if e.Class != waybill.ClassOutage {
		e = outage(op, cause)
	}
	e.Err = fmt.Errorf("no answer in time; the result is unknown: %w (%w)", e.Err, err)
	return e
}
