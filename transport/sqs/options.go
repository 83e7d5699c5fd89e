package sqs

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
)

// Options configures a transport. The zero value is ready for use by a consumer; a producer needs Bindings. It is a
// value; changes after New have no effect.
type Options struct {
	// Bindings say which queues get which topics: queue → topics, * for one word, # for any number. SQS has no
	// topics, so the publisher sends a copy to each queue that fits. Producers need all queues here. Subscribe adds
	// the bindings of its subscription, for publishers of the same transport only. Default none.
	Bindings map[string][]string
	// TopicARN is a topic of SNS, such as arn:aws:sns:eu-central-1:123456789012:orders. Publish sends each message
	// to it once, and SNS fans out to the subscribed queues. The subscriptions, with RawMessageDelivery, and their
	// filter policies are yours to make, so consumers have no bindings. A publisher's Bindings say which queues it
	// expects: Check, and the first Publish, verify that each of them is subscribed, and a topic that fits none is
	// unroutable. Without Bindings nothing is verified. Subscribe lets the topic send to the queues that it makes.
	// The name ends in .fifo exactly if FIFO is true. Default none.
	TopicARN string
	// SNS is the client for TopicARN: snsclient.New of a client of the SDK. Only publishers need it.
	SNS SNS
	// Prefix stands before the name of every queue, such as "staging-": letters, digits, - and _; default none.
	Prefix string
	// FIFO uses FIFO queues: messages of a key stay in order, and a retry or a release of one holds up its key. All
	// programs must agree. Default false: standard queues.
	FIFO bool
	// Passive looks for queues and makes none. Default false: Subscribe makes missing ones, and their dead-letter
	// queues. A publisher never makes queues.
	Passive bool
	// HoldFor is the visibility timeout: how long a delivery stays with a receiver that does not renew it. Whole
	// seconds, 1 s to 12 h; default 9 s. After a crash its messages come again when it has passed.
	HoldFor time.Duration
	// Wait is how long one request for messages waits for some. Whole seconds, 1 to 20 s; default 20 s, the
	// cheapest.
	Wait time.Duration
	// Retention is how long queues that Subscribe makes keep messages, dead-letter queues included. Whole seconds,
	// 1 min to 14 days; default 14 days. SQS then drops a message that no consumer took.
	Retention time.Duration
	// DeliveryLimit is after how many deliveries SQS itself parks a message (maxReceiveCount): 1 to 1,000, above
	// Subscription.MaxDeliveries. Default 200.
	DeliveryLimit int
	// KMSKey is the id, ARN or alias of a key that encrypts the queues that Subscribe makes; default SQS's own.
	KMSKey string
	// Requests bounds the requests to send that are in progress, over all calls; 1 to 1,000, default 32. Each one
	// carries up to 10 messages. The client should keep as many idle connections; the SDK's default is ten.
	Requests int
	// Timeout bounds a request, the client's own retries included; one that waits for messages gets Wait on top. At
	// least 100 ms; default 15 s.
	Timeout time.Duration
	// Logger gets the log; nil means slog.Default.
	Logger *slog.Logger
}

// The defaults of Options.
const (
	DefaultHoldFor       = 9 * time.Second
	DefaultWait          = 20 * time.Second
	DefaultRetention     = 14 * 24 * time.Hour
	DefaultDeliveryLimit = 200
	DefaultRequests      = 32
	DefaultTimeout       = 15 * time.Second
)

// The limits of SQS, and of SNS.
const (
	maxHold       = 12 * time.Hour
	maxWait       = 20 * time.Second
	maxRetention  = 14 * 24 * time.Hour
	maxReceives   = 1000
	maxRequests   = 1000
	maxDelay      = 15 * time.Minute // DelaySeconds
	maxEntries    = 10               // of a batch
	maxBytes      = 1 << 20          // of a message, and of a batch
	maxTopicBytes = 256 << 10        // of a message, and of a batch, to a topic of SNS
	maxAttributes = 10
)

var topicARN = regexp.MustCompile(`^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$`)

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&o.HoldFor, DefaultHoldFor},
		{&o.Wait, DefaultWait},
		{&o.Retention, DefaultRetention},
		{&o.Timeout, DefaultTimeout},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	o.DeliveryLimit = cmp.Or(o.DeliveryLimit, DefaultDeliveryLimit)
	o.Requests = cmp.Or(o.Requests, DefaultRequests)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// Validate returns an error that lists all problems of o, or nil.
func (o Options) Validate() error {
	o = o.withDefaults()
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	seconds := func(name string, d, least, most time.Duration) {
		if d < least || d > most || d%time.Second != 0 {
			bad("%s: %s is not between %s and %s in whole seconds; leave it 0 for the default", name, d, least, most)
		}
	}
	seconds("HoldFor", o.HoldFor, time.Second, maxHold)
	seconds("Wait", o.Wait, time.Second, maxWait)
	seconds("Retention", o.Retention, time.Minute, maxRetention)
	if o.DeliveryLimit < 1 || o.DeliveryLimit > maxReceives {
		bad("DeliveryLimit: %d is not between 1 and %d; leave it 0 for %d", o.DeliveryLimit, maxReceives, DefaultDeliveryLimit)
	}
	if o.Requests < 1 || o.Requests > maxRequests {
		bad("Requests: %d is not between 1 and %d; leave it 0 for %d", o.Requests, maxRequests, DefaultRequests)
	}
	if o.Timeout < 100*time.Millisecond {
		bad("Timeout: %s is less than 100ms; leave it 0 for %s", o.Timeout, DefaultTimeout)
	}
	if !plain(o.Prefix) || len(o.Prefix) > maxPrefix {
		bad("Prefix: %q is longer than %d characters, or has others than letters, digits, - and _", o.Prefix, maxPrefix)
	}
	switch {
	case o.TopicARN == "" && o.SNS != nil:
		bad("SNS: there is a client, and no TopicARN: set it, or leave out both")
	case o.TopicARN != "" && !topicARN.MatchString(o.TopicARN):
		bad("TopicARN: %q is not such as arn:aws:sns:eu-central-1:123456789012:orders", o.TopicARN)
	case o.TopicARN != "" && strings.HasSuffix(o.TopicARN, fifoSuffix) != o.FIFO:
		bad("TopicARN: %q, and FIFO is %t: FIFO queues need a topic whose name ends in %s, others one without", o.TopicARN, o.FIFO, fifoSuffix)
	case o.TopicARN != "" && o.KMSKey == "alias/aws/sqs":
		bad("KMSKey: SNS may not use %s: take a key of your own whose policy permits it, or leave it empty", o.KMSKey)
	}
	for _, queue := range slices.Sorted(maps.Keys(o.Bindings)) {
		if problem := checkQueue(queue); problem != "" {
			bad("Bindings: %s", problem)
		}
		for i, b := range o.Bindings[queue] {
			if b == "" || len(b) > waybill.MaxNameBytes {
				bad("Bindings[%q][%d]: has %d bytes, not between 1 and %d", queue, i, len(b), waybill.MaxNameBytes)
			}
		}
	}
	return waybill.Invalid("waybill/sqs: options", p...)
}
