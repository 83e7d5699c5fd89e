package waybill

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/check"
)

// Limits bounds what can be staged. Zero fields mean the default.
type Limits struct {
	// MaxMessageBytes bounds a message as [Envelope.Size] counts it: the body, names and headers. Default 704 KiB,
	// which every transport carries: brokers with 1 MiB for everything, as text, among them. At most 128 MiB. Set
	// it to the least MaxMessageBytes of the transports in use, so that a message which is too large fails when it
	// is staged.
	MaxMessageBytes int
	// MaxHeaders bounds the number of headers; default 64.
	MaxHeaders int
	// MaxHeaderBytes bounds the sum of header names and values; default 16 KiB.
	MaxHeaderBytes int
	// MaxDelay bounds how far in the future a message can be due; default 10 years.
	MaxDelay time.Duration
}

// MaxNameBytes bounds ids, topics, types, sources, keys, routes and the like: the length of an AMQP short string.
const MaxNameBytes = check.MaxNameBytes

// MaxMessages bounds the messages of one Stage call.
const MaxMessages = 10_000

const (
	defaultMaxMessage     = 704 << 10
	maxMaxMessage         = 128 << 20
	defaultMaxHeaders     = 64
	defaultMaxHeaderBytes = 16 << 10
	defaultMaxDelay       = 10 * 366 * 24 * time.Hour
)

// WithDefaults returns l with the default for every zero field.
func (l Limits) WithDefaults() Limits {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&l.MaxMessageBytes, defaultMaxMessage)
	set(&l.MaxHeaders, defaultMaxHeaders)
	set(&l.MaxHeaderBytes, defaultMaxHeaderBytes)
	l.MaxDelay = cmp.Or(l.MaxDelay, defaultMaxDelay)
	return l
}

// Validate reports all problems of l, prefixed with field.
func (l Limits) Validate(field string) []string {
	var p []string
	if l.MaxMessageBytes < 0 || l.MaxMessageBytes > maxMaxMessage {
		p = append(p, fmt.Sprintf("%s.MaxMessageBytes: %d is not between 0 (default) and %d", field, l.MaxMessageBytes, maxMaxMessage))
	}
	for _, n := range [...]struct {
		name  string
		value int
	}{{"MaxHeaders", l.MaxHeaders}, {"MaxHeaderBytes", l.MaxHeaderBytes}} {
		if n.value < 0 {
			p = append(p, fmt.Sprintf("%s.%s: %d is negative; leave it 0 for the default", field, n.name, n.value))
		}
	}
	if l.MaxDelay < 0 {
		p = append(p, fmt.Sprintf("%s.MaxDelay: %s is negative; leave it 0 for the default", field, l.MaxDelay))
	}
	return p
}

// reserved header names, compared in lower case: they would collide with headers that transports write.
var (
	reservedNames    = []string{"traceparent", "tracestate", "x-death", "x-acquired-count"}
	reservedPrefixes = []string{"cloudevents_", "cloudevents:", "ce_", "ce-", "waybill-", "x-first-death-", "x-last-death-", "x-delivery-"}
)

// ReservedHeader reports whether name belongs to Waybill or to a broker. Applications cannot set such a header.
func ReservedHeader(name string) bool {
	n := strings.ToLower(name)
	if slices.Contains(reservedNames, n) {
		return true
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(n, p) {
			return true
		}
	}
	return false
}
