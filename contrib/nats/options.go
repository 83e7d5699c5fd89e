package nats

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
)

// Options of a transport. Zero fields mean the default.
type Options struct {
	// Bus is the name of the stream, and the first word of its subjects; default "waybill". Letters, digits, - and
	// _.
	Bus string
	// Replicas of the streams, 1 to 5; default 1. From 3 on a confirmed message survives that one machine is gone
	// for good, while all others run on. After a loss of power it can be lost with any number; see SyncAlways.
	Replicas int
	// SyncAlways says that all servers have jetstream { sync_interval: always }, so that confirmed messages are on
	// their disks. A client cannot look that up. The transport declares PublisherTraits.Synced by it.
	SyncAlways bool
	// HoldFor is how long a delivery belongs to its receiver without being renewed (AckWait); default 9 s, at
	// least 100 ms. All processes of a bus use the same. A delivery that a killed process held comes after it.
	HoldFor time.Duration
	// Timeout bounds one request to the server; default 10 s.
	Timeout time.Duration
	// AckTimeout is how long the server may take for the answer to an acknowledgement; default 3 s. Without one,
	// on a connection that is up, the delivery counts as lost, and comes again.
	AckTimeout time.Duration
	// Passive: streams and consumers exist already; nothing is declared or changed. A consumer that the transport
	// has not made gets what its own filters say.
	Passive bool
	// Connection are options for Dial, such as nats.Secure for TLS, nats.RootCAs, nats.ClientCert,
	// nats.UserCredentials.
	Connection []nats.Option
}

// synced: confirmed messages survive a loss of power. Replicas alone do not do it: of two that have confirmed one loses
// its unsynced messages, and makes a majority with a third that was away.
func (o Options) synced() bool { return o.SyncAlways }

func (o Options) withDefaults() (Options, error) {
	o.Bus = cmp.Or(o.Bus, "waybill")
	o.Replicas = cmp.Or(o.Replicas, 1)
	o.HoldFor = cmp.Or(o.HoldFor, 9*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.AckTimeout = cmp.Or(o.AckTimeout, 3*time.Second)
	var p []string
	if strings.ContainsFunc(o.Bus, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	}) {
		p = append(p, fmt.Sprintf("Bus: %q holds something else than letters, digits, - and _; choose another name", o.Bus))
	}
	if o.Replicas < 1 || o.Replicas > 5 {
		p = append(p, fmt.Sprintf("Replicas: %d is not between 1 and 5", o.Replicas))
	}
	if o.HoldFor < 100*time.Millisecond {
		p = append(p, fmt.Sprintf("HoldFor: %s is less than 100ms", o.HoldFor))
	}
	if o.Timeout < 0 || o.AckTimeout < 0 {
		p = append(p, fmt.Sprintf("Timeout, AckTimeout: %s or %s is negative; leave them 0 for the default", o.Timeout, o.AckTimeout))
	}
	return o, waybill.Invalid("waybill/nats: options", p...)
}
