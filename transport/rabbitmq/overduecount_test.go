package rabbitmq

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// CO-20: the overdue deliveries are the one that was held for longest, and all that were held for the limit. Its count
// ends with its verdict, and no number of messages takes more memory than a bound.
func TestOverdueCounts(t *testing.T) {
	t.Parallel()
	a := newAcks(nil)
	delivery := func(id string) *waybill.Delivery {
		return &waybill.Delivery{Envelope: waybill.Envelope{Source: "/s", ID: id}}
	}
	now := time.Now()
	for i, held := range []time.Duration{3 * time.Hour, 2 * time.Hour, time.Minute} {
		a.arrived(uint64(i+1), now.Add(-held), 1, delivery(fmt.Sprint("m", i)))
	}
	var o overdue
	o.add(a.heldTooLong(time.Hour))
	o.add(a.heldTooLong(time.Hour * 24))
	counts := func() string { return fmt.Sprint(o.of(delivery("m0")), o.of(delivery("m1")), o.of(delivery("m2"))) }
	if got, want := counts(), "2 1 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	acks := []core.Ack{core.AckRelease(delivery("m0")), core.AckDone(delivery("m1"))}
	o.settled(acks, core.Results{nil, errors.New("not stored")})
	if got, want := counts(), "2 1 0"; got != want {
		t.Errorf("after a release and a failed settle: %s, want %s", got, want)
	}
	o.settled(acks[1:], core.Results{nil})
	if got, want := counts(), "2 0 0"; got != want {
		t.Errorf("after a verdict: %s, want %s", got, want)
	}
	for i := range 3 * maxOverdue {
		o.add([]messageID{{"/s", fmt.Sprint("other", i)}})
	}
	if n := len(o.counts); n > maxOverdue {
		t.Errorf("%d are kept", n)
	}
}
