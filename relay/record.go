package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/chance"
)

// attempt is the number of this attempt, from 1.
func attempt(item *dispatch.Item) int { return item.Record.Attempts + 1 }

// event returns a hook's event about an item, without its age.
func event(item *dispatch.Item) Event {
	m := &item.Record.Envelope
	return Event{Route: item.Route(), ID: m.ID, Topic: m.Topic, Key: m.Key, Attempt: attempt(item), Age: item.Record.DueFor}
}

// event returns a hook's event about an item.
func (e *engine) event(item *dispatch.Item) Event {
	ev := event(item)
	ev.Age = e.age(item)
	return ev
}

// age is the time since the record became due, by the store's clock.
func (e *engine) age(item *dispatch.Item) time.Duration {
	return item.Record.DueFor + e.now.Sub(e.began)
}

// expired reports whether the record has expired, by the store's clock.
func (e *engine) expired(item *dispatch.Item) bool {
	return item.Record.Expires && item.Record.ExpiresIn <= e.now.Sub(e.began)
}

// classify is waybill.ClassOf with what only the relay knows. The end of a call's context means that the result never
// came. Something that worked once and is misconfigured now will work again.
func classify(err error) waybill.Class {
	class := waybill.ClassOf(err)
	switch {
	case errors.Is(err, waybill.ErrUnroutable) && class != waybill.ClassOutage:
		return waybill.ClassRejected
	case errors.Is(err, waybill.ErrMisconfigured):
		return waybill.ClassOutage
	case class == waybill.ClassUnknown && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, waybill.ErrClosed)):
		return waybill.ClassOutage
	}
	return class
}

// unroutableBackoff spaces the attempts of unroutable records: as b, but without a bound of its own.
func unroutableBackoff(b *waybill.Backoff) waybill.Backoff {
	u := *b
	switch b.Kind {
	case waybill.BackoffExponential, waybill.BackoffLinear, waybill.BackoffConstant:
	case waybill.BackoffDelays, waybill.BackoffNone, waybill.BackoffCustom:
		u = waybill.Backoff{}
	}
	u.Attempts = -1
	return u
}

// guardErr runs f and turns a panic into an error. That includes a panic of the returned error itself, such as a nil
// pointer of its type.
func guardErr(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("waybill/relay: %s panicked: %v", what, p)
		}
	}()
	if err = f(); err != nil {
		_, _ = err.Error(), classify(err)
	}
	return err
}

// guardEach does the same for each of res.
func guardEach(what string, res core.Results) {
	for i, err := range res {
		if err != nil {
			res[i] = guardErr(what, func() error { return err })
		}
	}
}

// round makes a duration readable.
func round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}

// earliest returns the earlier of two times; zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// jitter shortens d by up to a quarter, so that relays do not poll in step.
func jitter(d time.Duration) time.Duration { return d - chance.N(d/4+1) }
