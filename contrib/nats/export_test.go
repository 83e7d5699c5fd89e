package nats

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Exported for the tests.
var (
	Encode   = encode
	Decode   = decode
	Disjoint = disjoint
	Fits     = fits
	Patterns = patterns
	Classify = classify
	Synced   = Options.synced
	TooOld   = tooOld
)

// ReplyOf returns where the server takes acknowledgements of a delivery.
func ReplyOf(d *waybill.Delivery) string { return d.Handle.(*handle).m.Reply }

// CameEarly makes d a delivery that came before its time, which has come since.
func CameEarly(d *waybill.Delivery) {
	h := d.Handle.(*handle)
	h.early, h.due = true, time.Now().Add(-time.Second)
}

// FetchedBytes returns how many bytes of bodies r has that Receive has not returned.
func FetchedBytes(r core.Receiver) (n int) {
	own := r.(*receiver)
	own.mu.Lock()
	defer own.mu.Unlock()
	for _, h := range own.fetched {
		n += len(h.delivery.Envelope.Body)
	}
	return n
}
