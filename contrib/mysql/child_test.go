package waybillmysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/transport/table"
)

// step is the message of the tests with processes: the nth of its key.
type step struct {
	Key string
	N   int
}

var stepTaken = waybill.NewTopic("steps.taken", waybill.JSON[step]())

func (s step) message() waybill.Message {
	return stepTaken.Message(s, waybill.ID(fmt.Sprintf("%s-%d", s.Key, s.N)), waybill.Key(s.Key))
}

const (
	roleVar = "WAYBILL_MYSQL_ROLE" // relay or consumer: this process is a child
	dsnVar  = "WAYBILL_MYSQL_DSN"
	urlVar  = "WAYBILL_MYSQL_URL"
	// leaseVar is the lease of relays, if it is not to be 2 s.
	leaseVar = "WAYBILL_MYSQL_LEASE"
)

// child runs this process as a relay or a consumer if a test started it as such. It ends by a signal.
func child() bool {
	role := os.Getenv(roleVar)
	if role == "" {
		return false
	}
	run := map[string]func(context.Context, *waybillmysql.Store) error{"relay": runRelay, "consumer": runConsumer}[role]
	s, err := waybillmysql.Open(os.Getenv(dsnVar), waybillmysql.Options{Source: "/test"})
	if err == nil {
		err = run(context.Background(), s)
	}
	fmt.Fprintln(os.Stderr, role, "ended:", err)
	return true
}

// startChild starts a child that is killed with the test.
func startChild(t *testing.T, role, dsn, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVar+"="+role, dsnVar+"="+dsn, urlVar+"="+url)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = withParent()
	if err := begin(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// httpBroker publishes to the broker of the test's own process.
type httpBroker struct{ url string }

func (b httpBroker) Traits() core.PublisherTraits {
	return core.PublisherTraits{Confirmed: true, KeyOrder: core.KeyOrderSerial}
}

func (b httpBroker) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	fail := func(err error) core.Results {
		return core.AllFailed(len(batch), &waybill.Error{Op: "publish", Class: waybill.ClassOutage, Err: err})
	}
	text, err := json.Marshal(batch)
	if err != nil {
		return fail(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url, bytes.NewReader(text))
	if err != nil {
		return fail(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fail(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return fail(err)
	}
	if res.StatusCode != http.StatusOK {
		return fail(fmt.Errorf("status %d", res.StatusCode))
	}
	return make(core.Results, len(batch))
}

func runRelay(ctx context.Context, s *waybillmysql.Store) error {
	lease, err := time.ParseDuration(os.Getenv(leaseVar))
	if err != nil {
		lease = 2 * time.Second
	}
	r, err := relay.New(s, httpBroker{os.Getenv(urlVar)}, relay.Options{
		Lease: lease, PollMin: 5 * time.Millisecond, PollMax: 50 * time.Millisecond, BatchSize: 20, Window: 2, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func runConsumer(ctx context.Context, s *waybillmysql.Store) error {
	queue, err := table.New(s, table.Options{
		Lease: time.Second, PollMin: 5 * time.Millisecond, PollMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	c, err := newConsumer(queue, s, waybill.DefaultRoute)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// newConsumer returns a consumer that writes an effect for each step.
func newConsumer(from core.Subscriber, s *waybillmysql.Store, queue string) (*consumer.Consumer, error) {
	marks, err := inbox.New(s, "effects", inbox.Options{Retention: -1})
	if err != nil {
		return nil, err
	}
	c, err := consumer.New(from, consumer.Options{
		Logger: slog.New(slog.DiscardHandler), MaxDeliveries: -1, Concurrency: 4,
		Pause: waybill.Backoff{Base: 50 * time.Millisecond, Cap: 200 * time.Millisecond},
	})
	if err != nil {
		return nil, err
	}
	return c, c.Handle(waybill.Subscription{Queue: queue, Bindings: []string{stepTaken.Name()}},
		inbox.Handler(marks, stepTaken, func(ctx context.Context, tx *sql.Tx, s step) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (k, step) VALUES (?, ?)`, s.Key, s.N)
			return err
		}))
}
