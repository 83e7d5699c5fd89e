package transporttest

// A broker adds headers of its own to a message that it delivers again, and an adapter adds some to a copy. So a
// message whose own headers are at the limit can become one that the adapter's client cannot read. Its connection then
// ends, for all neighbours, again and again.

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var headerChecks = []named{
	{"headers-at-the-limit", ofEither, headersAtTheLimit},
}

// withHeaders returns a message with about n bytes of headers more than full has.
func withHeaders(topic string, n int) waybill.Envelope {
	const piece = 4000
	m := full(topic)
	for i := 0; n > 0; i++ {
		m.Headers[fmt.Sprintf("h%03d", i)] = strings.Repeat("x", min(n, piece))
		n -= piece
	}
	return m
}

// A message with as many bytes of headers as the transport publishes is given back, retried and parked. If it has no
// room for a retry, it is parked as too large.
func headersAtTheLimit(k *kit) {
	most := 256 << 10
	if k.pub.MaxMessageBytes > 0 {
		most = min(most, k.pub.MaxMessageBytes)
	}
	r, name := k.queue("a")
	n := sort.Search(most, func(n int) bool { // it finds the first that is too large
		m := withHeaders(name+".a", n)
		if m.Size() > most {
			return true
		}
		err := k.send([]waybill.Envelope{m})[0]
		// The stager of a table has a limit of its own.
		if waybill.ReasonOf(err) == waybill.ReasonTooLarge || errors.Is(err, waybill.ErrInvalid) {
			return true
		}
		k.must(fmt.Sprintf("publish a message with headers of %d bytes", n), err)
		k.same(m, k.consume(r, 1)[0].Envelope, fmt.Sprintf("a message with headers of %d bytes", n))
		return false
	}) - 1
	k.closeReceiver(r)
	for _, room := range []int{0, 20, 40, 60, 300} { // no room for a count, for two of them, and for a history
		k.headers(max(n-room, 0))
	}
}

// headers gives back, retries and parks a message with n bytes of headers. Another message comes through behind it.
func (k *kit) headers(n int) {
	what := fmt.Sprintf("a message with headers of %d bytes", n)
	r, name := k.queue("a")
	m := withHeaders(name+".a", n)
	k.publish(m)
	d := k.receive(r, 1)[0]
	for range 2 {
		k.settle(r, core.AckRelease(d))
		d = k.receive(r, 1)[0]
		k.same(m, d.Envelope, what+" that was given back")
	}
	k.settle(r, core.AckRetry(d, tier1, errors.New("not now")))
	if k.h.Parked == nil || !k.sub.Parks {
		k.same(m, k.consume(r, 1)[0].Envelope, what+" that was retried")
		return
	}
	ds, parked := k.comesOrIsParked(r, name)
	switch {
	case len(ds) > 0:
		k.same(m, ds[0].Envelope, what+" that was retried")
		k.settle(r, core.AckReject(ds[0], waybill.ReasonRejected, errors.New(strings.Repeat("no good ", 500))))
		parked = k.awaitParked(name)
	case len(parked) > 0 && parked[0].Reason != waybill.ReasonTooLarge:
		k.fail("%s was parked instead of retried, with the reason %q, want %q", what, parked[0].Reason, waybill.ReasonTooLarge)
	}
	k.failIf(len(parked) != 1 || parked[0].Envelope.ID != m.ID, "%d messages are parked, want %s", len(parked), what)
	last := message(name+".a", 1)
	k.publish(last)
	k.exactly([]waybill.Envelope{last}, k.consume(r, 1))
}
