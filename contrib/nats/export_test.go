package nats

import "github.com/waybill-go/waybill"

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
