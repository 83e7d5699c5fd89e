package transporttest

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Harness is the adapter under test with the functions that the suite needs. A nil field means: not under test, or not
// available. The suite skips the checks that need it, and says so.
//
// An adapter that only publishes sets Publisher and Reader; one that only receives sets Subscriber and Writer. Reader
// and Writer are helpers on the same broker, such as the broker's own client behind these interfaces. Their promises
// are not tested.
type Harness struct {
	// Publisher and Subscriber are under test. The same values serve all of one check.
	Publisher  core.Publisher
	Subscriber core.Subscriber
	// Reader receives what Publisher sends, if Subscriber is nil. Writer sends what Subscriber receives, if
	// Publisher is nil.
	Reader core.Subscriber
	Writer core.Publisher
	// NewName returns a name that the broker has not seen. Queues are called like it, and topics have it as their
	// first word. Nil: the suite makes names of at most 20 lower-case letters and digits.
	NewName func() string
	// Close closes the transport under test, both directions; see core.Transport.
	Close func(ctx context.Context) error
	// Reopen returns a second subscriber on the same broker, which lives on when Close closes the first. The
	// harness closes it after the check.
	Reopen func(ctx context.Context) (core.Subscriber, error)
	// Parked returns the parked messages of a queue, oldest first, without removing them.
	Parked func(ctx context.Context, queue string) ([]Parked, error)
	// Restart ends the broker or its connections as a crash would, and returns when it takes connections again.
	Restart func(ctx context.Context) error
	// Cut cuts the link between the adapter and the broker: calls in progress fail or hang, and nothing arrives on
	// either side. heal ends that. Data on its way is lost.
	Cut func(ctx context.Context) (heal func() error, err error)
	// Deafen loses the broker's answers; the adapter's requests arrive. heal ends that.
	Deafen func(ctx context.Context) (heal func() error, err error)
	// Refuse has the broker refuse writes, with an answer, over a link that works: as a full disk, a lost right or
	// a queue without its replicas does. undo ends that. Its error is ErrNotDeclared for a kind that it cannot do.
	Refuse func(ctx context.Context, what Refused) (undo func() error, err error)
	// SizeLimit is the name of the broker's setting by which Refuse does RefuseLarge. The adapter's errors hold it.
	SizeLimit string
	// SettlesUnanswered: the broker's protocol has no answer to a settle, as AMQP 0-9-1. A nil slot then means
	// that it was sent, and the suite does not test what a cut link does to it.
	SettlesUnanswered bool
	// ReleasesCountOnce: the broker takes the first release of a message for a redelivery, since it cannot tell
	// them apart, as RabbitMQ before 4.3. So releases may raise Redeliveries to 1, and no further.
	ReleasesCountOnce bool
	// Unreadable puts a message into a queue that the adapter cannot read, such as one with broken properties.
	Unreadable func(ctx context.Context, queue string) error
	// ReservedNames are header names that the broker, or its client, interprets. They must arrive as they were.
	ReservedNames []string
}

// Refused is a kind of writes that Harness.Refuse has the broker refuse.
type Refused uint8

const (
	// RefuseMessages has messages that are published refused, and copies of them. Settles that need none are
	// accepted.
	RefuseMessages Refused = iota + 1
	// RefuseAll has every write refused, also settles.
	RefuseAll
	// RefuseLarge lowers the limit Harness.SizeLimit of the broker under a running adapter. It refuses messages of
	// LargeBytes, or of PublisherTraits.MaxMessageBytes if that is less. It accepts those of 1,000 bytes.
	RefuseLarge
)

// LargeBytes is the size of a message, as waybill.Envelope.Size counts it, that RefuseLarge has refused.
const LargeBytes = 2 << 20

// Of returns the harness of a whole transport.
func Of(t core.Transport) Harness { return Harness{Publisher: t, Subscriber: t, Close: t.Close} }

// Parked is a parked message as Harness.Parked found it.
type Parked struct {
	Envelope waybill.Envelope
	Reason   waybill.Reason
	Err      string
}

// ErrNotDeclared reports that a check does not apply: the adapter's traits, or the harness, do not have what it tests.
var ErrNotDeclared = errors.New("not declared")

// Check is one promise.
type Check struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Doc is the promise, in one sentence.
	Doc string
	// Run returns nil if the promise holds, and an error that matches ErrNotDeclared if it was not made. Else the
	// error names the wrong behaviour, the line of the suite that saw it, and the promise. It takes at most
	// Timeout, even if the adapter hangs. It needs a harness of its own.
	Run func(ctx context.Context, h Harness) error
}

// Checks returns all checks.
func Checks() []Check {
	var all []Check
	for _, group := range [...][]named{
		publishChecks, againChecks, nameChecks, bindingChecks, receiveChecks, settleChecks, retryChecks, countChecks, holdChecks, rejectChecks,
		parkedChecks, selectChecks, orderChecks, lifeChecks, cutChecks, edgeChecks, yearChecks, headerChecks,
	} {
		for _, c := range group {
			all = append(all, Check{Name: c.name, Doc: source.Promise(c.name), Run: c.run})
		}
	}
	return all
}
