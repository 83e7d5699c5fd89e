package transporttest

import (
	"context"
	"embed"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
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
		publishChecks, bindingChecks, receiveChecks, settleChecks, retryChecks, countChecks, rejectChecks,
		parkedChecks, selectChecks, orderChecks, lifeChecks, cutChecks, edgeChecks,
	} {
		for _, c := range group {
			all = append(all, Check{Name: c.name, Doc: source.Promise(c.name), Run: c.run})
		}
	}
	return all
}

// Timeout bounds one check in Run.
const Timeout = 2 * time.Minute

// Run makes every check a subtest with a new harness. Checks of undeclared features are skipped, and told of in the
// log.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.Run(t, checksWith(newHarness))
}

// RunSpread is Run with a worker for each newHarness, side by side, since checks mostly wait. Every check runs once,
// with a harness of one worker. No two workers must share one broker or virtual host: some checks restart it.
func RunSpread(t *testing.T, newHarness ...func(t *testing.T) Harness) {
	t.Helper()
	suitetest.RunSpread(t, &conformance, checksWith, newHarness)
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	conformance.RunInBubble(t, checksWith(newHarness))
}

var conformance = suitetest.Suite{Name: "transporttest", Timeout: Timeout, NotDeclared: ErrNotDeclared}

func checksWith(newHarness func(t *testing.T) Harness) []suitetest.Check {
	return suitetest.With(Checks(), newHarness, func(c Check) (string, func(context.Context, Harness) error) { return c.Name, c.Run })
}

// side is what a check tests: the publisher, the subscriber, or both of them.
type side uint8

const (
	ofPublisher side = 1 << iota
	ofSubscriber
	ofEither = ofPublisher | ofSubscriber
)

// named is a check as it is written: it gives up in the way of package suitetest, which run turns into an error. Its
// promise is the first paragraph of the comment of its function.
type named struct {
	name string
	of   side
	fn   func(k *kit)
}

func (c named) run(ctx context.Context, h Harness) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(Timeout))
	defer cancel()
	return source.Do(ctx, c.name, func() {
		k := newKit(ctx, h)
		defer k.close()
		k.needs(c.of&ofPublisher != 0 && h.Publisher != nil || c.of&ofSubscriber != 0 && h.Subscriber != nil, "under test, only the other direction is")
		c.fn(k)
	})
}

//go:embed *.go
var files embed.FS

var source = suitetest.Source{Files: files, NotDeclared: ErrNotDeclared}

func (k *kit) fail(format string, a ...any) { suitetest.Failf(format, a...) }

// failIf is fail if the condition holds.
func (k *kit) failIf(is bool, format string, a ...any) {
	if is {
		suitetest.Failf(format, a...)
	}
}
