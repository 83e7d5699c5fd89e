package kafka

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
)

// Options of a transport. Zero fields mean the default.
type Options struct {
	// Bus is the name of the log with the published messages, and the beginning of all other names; default
	// "waybill". Letters, digits, - and dots.
	Bus string
	// Partitions of the bus and of the retry log of each queue; default 12. They bound the receivers of a queue
	// that get messages at the same time. A larger number moves keys to other partitions, out of their order.
	Partitions int
	// Replicas of all logs; default what the brokers say (default.replication.factor). Production has 3.
	Replicas int
	// MinInSync is the min.insync.replicas of all logs; default what the brokers say. Production has 2.
	MinInSync int
	// Retention is how long the bus and the retry logs keep a message; default 7 days. A queue loses what it has
	// not read by then, with an error. A retry delay is at most half of it.
	Retention time.Duration
	// SessionTimeout is after how long the messages of a killed process go to another one; default 10 s. The
	// brokers refuse less than 6 s by default.
	SessionTimeout time.Duration
	// DrainFor is how long a rebalance waits for the handlers of the messages that move to another process; default
	// 10 s. A delivery that is not settled by then is lost to its handler, and comes again there.
	DrainFor time.Duration
	// Timeout bounds one request; default 10 s.
	Timeout time.Duration
	// Passive: all logs exist already. Nothing is declared.
	Passive bool
	// Lazy leaves the bus to the first use, so that Dial does not wait for brokers that are down: it asks for two
	// seconds at most. Until then the publisher promises what the brokers' default settings allow.
	Lazy bool
	// Client are options of the client for every connection, such as kgo.DialTLSConfig and kgo.SASL.
	// kgo.DisableIdempotentWrite is refused, since the order and the number of copies depend on it.
	Client []kgo.Opt
}

// produceTimeout bounds a produce request, so that a leader that does not answer is left for the next one.
const produceTimeout = 3 * time.Second

func (o Options) withDefaults() (Options, error) {
	o.Bus = cmp.Or(o.Bus, "waybill")
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	o.Partitions = cmp.Or(o.Partitions, 12)
	set(&o.Retention, 7*24*time.Hour)
	set(&o.SessionTimeout, 10*time.Second)
	set(&o.DrainFor, 10*time.Second)
	set(&o.Timeout, 10*time.Second)
	var p []string
	if strings.ContainsFunc(o.Bus, func(r rune) bool { return r > '~' || bad(byte(r)) }) || strings.HasPrefix(o.Bus, ".") {
		p = append(p, fmt.Sprintf("Bus: %q holds something else than letters, digits, - and dots; choose another name", o.Bus))
	}
	if most := maxName - maxQueue - len(".parked."); len(o.Bus) > most {
		p = append(p, fmt.Sprintf("Bus: has %d characters, at most %d are allowed, so that names of queues fit behind it", len(o.Bus), most))
	}
	if o.Partitions < 1 || o.Replicas < 0 || o.MinInSync < 0 {
		p = append(p, fmt.Sprintf("Partitions, Replicas, MinInSync: %d, %d or %d is too small", o.Partitions, o.Replicas, o.MinInSync))
	}
	if o.Replicas > 0 && o.MinInSync > o.Replicas {
		p = append(p, fmt.Sprintf("MinInSync: %d is more than Replicas, %d: nothing could be published", o.MinInSync, o.Replicas))
	}
	for _, d := range []time.Duration{o.Retention, o.SessionTimeout, o.DrainFor, o.Timeout} {
		if d < time.Millisecond {
			p = append(p, fmt.Sprintf("Retention, SessionTimeout, DrainFor, Timeout: %s is too short; leave it 0 for the default", d))
		}
	}
	return o, waybill.Invalid("waybill/kafka: options", p...)
}
