package relay

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/core"
)

// lease bounds what a session may do. No publish begins after its end. A publish that runs then is cancelled. The loop
// owns all fields; until is read by the goroutines of the publishes, too.
type lease struct {
	until  atomic.Pointer[time.Time] // when the next publish must have begun
	last   time.Time                 // when all publishes must have ended
	ctx    context.Context           //nolint:containedctx // ends with the lease
	cancel context.CancelFunc
	timer  *time.Timer
}

// holds reports whether a publish may begin. Any goroutine may ask.
func (l *lease) holds() bool {
	until := l.until.Load()
	return until != nil && time.Now().Before(*until)
}

// renew makes the lease last until a time. No publish begins after start, which is earlier while a token is shown. If
// the lease has ended already, its context is cancelled, and publishes from now on get another one.
func (l *lease) renew(parent context.Context, until, start time.Time) {
	if until.IsZero() {
		return
	}
	l.until.Store(&start)
	if !until.After(l.last) {
		return
	}
	l.last = until
	if l.timer != nil && l.timer.Stop() { // it has ended nothing, and will not
		l.timer.Reset(time.Until(until))
		return
	}
	ctx, cancel := context.WithCancel(parent)
	l.ctx, l.cancel = ctx, cancel
	l.timer = time.AfterFunc(time.Until(until), cancel)
}

// end ends the lease, and the publishes that began under it.
func (l *lease) end() {
	if l.timer != nil {
		l.timer.Stop()
		l.cancel()
	}
}

// errLate is why a publish did not begin.
var errLate = fmt.Errorf("the lease ended before the publish began: %w", core.ErrFenced)
