package transporttest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Harness is the transport under test with the functions that the suite needs. Functions that only some brokers have
// are optional interfaces: [ParkedLister] and [Restarter].
type Harness interface {
	// Transport returns the transport under test, the same one every time.
	Transport() core.Transport
	// NewName returns a name that this broker has not seen: lower-case letters and digits, at most 60. Queues are
	// called like it, and topics have it as their first word.
	NewName() string
}

// ParkedLister is a harness that can list what was rejected. Without it the suite checks only that a rejected message
// does not come again.
type ParkedLister interface {
	// Parked returns the parked messages of a queue, oldest first, without removing them.
	Parked(ctx context.Context, queue string) ([]Parked, error)
}

// Restarter is a harness that can restart its broker. Without it the suite does not know what an outage does.
type Restarter interface {
	// Restart ends the broker or its connections as a crash would, and returns when it takes connections again.
	Restart(ctx context.Context) error
}

// Parked is a parked message as [ParkedLister] found it.
type Parked struct {
	Envelope waybill.Envelope
	Reason   waybill.Reason
	Err      string
}

// ErrNotDeclared reports that a check does not apply: the transport's traits, or the harness, do not have what it
// tests.
var ErrNotDeclared = errors.New("not declared")

// Check is one promise.
type Check struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Run returns nil if the promise holds, an error that matches ErrNotDeclared if it was not made, and else an
	// error that says what happened instead. It needs a harness of its own.
	Run func(ctx context.Context, h Harness) error
}

// Checks returns all checks.
func Checks() []Check {
	var all []Check
	for _, group := range [...][]named{publishChecks, receiveChecks, settleChecks, rejectChecks, parkedChecks, orderChecks, lifeChecks} {
		for _, c := range group {
			all = append(all, Check{Name: c.name, Run: c.run})
		}
	}
	return all
}

// named is a check as it is written: it gives up by panicking with a failure, which run turns into an error.
type named struct {
	name string
	fn   func(k *kit)
}

type failure struct{ err error }

func (c named) run(ctx context.Context, h Harness) (err error) {
	t := h.Transport()
	k := &kit{ctx: ctx, h: h, tr: t, pub: t.Traits(), sub: t.SubscriberTraits()}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.err
		default:
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		k.close()
	}()
	c.fn(k)
	return nil
}
