package cli_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background)) }

var quiet = slog.New(slog.DiscardHandler)

// answer is what a run of the command gave.
type answer struct {
	code     int
	out, err string
}

// command runs the command with settings, and without a terminal to ask.
func command(tb testing.TB, settings []string, args ...string) answer {
	tb.Helper()
	return commandIn(tb.Context(), settings, args...)
}

// commandIn is command in a context that the test ends.
func commandIn(ctx context.Context, settings []string, args ...string) answer {
	var out, errs bytes.Buffer
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	app := cli.App{Version: "test", Stores: adapters.Stores(), Transports: adapters.Transports()}
	code := app.Run(ctx, args, cli.IO{In: strings.NewReader(""), Out: &out, Err: &errs})
	return answer{code, out.String(), errs.String()}
}

// is fails the test unless the command ended with code, and told each of these texts.
func (a answer) is(tb testing.TB, code int, texts ...string) answer {
	tb.Helper()
	if a.code != code {
		tb.Errorf("exit code %d, want %d\n%s%s", a.code, code, a.out, a.err)
	}
	for _, text := range texts {
		if !strings.Contains(a.out+a.err, text) {
			tb.Errorf("%q is missing in\n%s%s", text, a.out, a.err)
		}
	}
	return a
}

// not fails the test if the command told this text.
func (a answer) not(tb testing.TB, text string) {
	tb.Helper()
	if strings.Contains(a.out+a.err, text) {
		tb.Errorf("%q is in\n%s%s", text, a.out, a.err)
	}
}

// decode reads the JSON that the command printed.
func decode[T any](tb testing.TB, a answer) (out T) {
	tb.Helper()
	if err := json.Unmarshal([]byte(a.out), &out); err != nil {
		tb.Errorf("%v in\n%s%s", err, a.out, a.err)
	}
	return out
}

// shop is a store in an SQLite file.
type shop struct {
	tb       testing.TB
	settings []string
	store    *sqlite.Store
	answers  map[string]error // of the broker, by topic
	leaves   bool             // a relay may leave something that is due
}

func newShop(tb testing.TB) *shop {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "shop.db")
	store, err := sqlite.Open(tb.Context(), path, sqlite.Options{
		Source: "/shop", AutoMigrate: true, Logger: quiet, Retention: waybill.Retention{Abandoned: time.Hour, Cancelled: time.Hour},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close(context.WithoutCancel(tb.Context())) })
	return &shop{tb: tb, settings: []string{
		"stores.shop.kind=sqlite", "stores.shop.path=" + path, "stores.shop.retention.abandoned=1h", "stores.shop.retention.cancelled=1h",
	}, store: store, answers: map[string]error{
		"no":    &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonRejected, Err: errors.New("the broker says no")},
		"later": &waybill.Error{Class: waybill.ClassRejected, Err: errors.New("try later")},
	}}
}

// run runs the command on the shop.
func (s *shop) run(args ...string) answer {
	s.tb.Helper()
	return command(s.tb, s.settings, args...)
}

func (s *shop) stage(msgs ...waybill.Message) {
	s.tb.Helper()
	s.transact(func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.store.Stage(ctx, tx, msgs...)
		return err
	})
}

func (s *shop) transact(fn func(ctx context.Context, tx *sql.Tx) error) {
	s.tb.Helper()
	tx, err := s.store.DB().BeginTx(s.tb.Context(), nil)
	if err == nil {
		err = errors.Join(fn(s.tb.Context(), tx), tx.Commit())
	}
	if err != nil {
		s.tb.Fatal(err)
	}
}

// message is a message with an id that is its topic too, unless the options say otherwise.
func message(topic, id string, opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage(topic, "text/plain", []byte("body of "+id), append([]waybill.MessageOption{waybill.ID(id)}, opts...)...)
}

// relayed lets a relay take the due records to a broker that answers by topic.
func (s *shop) relayed() {
	s.tb.Helper()
	routes := []relay.Route{{Name: waybill.DefaultRoute, Backoff: waybill.RetryDelays(time.Hour, time.Hour)}}
	r, err := relay.New(s.store, broker(s.answers), relay.Options{Routes: routes, Logger: quiet, CleanInterval: -1})
	if err == nil {
		_, err = r.RunOnce(s.tb.Context())
	}
	if err != nil && !s.leaves {
		s.tb.Fatal(err)
	}
}

// broker answers by topic; others are confirmed.
type broker map[string]error

func (broker) Traits() core.PublisherTraits {
	return core.PublisherTraits{Confirmed: true, KeyOrder: core.KeyOrderSerial}
}

func (b broker) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	out := make(core.Results, len(batch))
	for i := range batch {
		out[i] = b[batch[i].Topic]
	}
	return out
}

// noEscapes fails the test if text could move the cursor of a terminal.
func noEscapes(tb testing.TB, text string) {
	tb.Helper()
	for _, r := range text {
		if r != '\n' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r == '\u202e') {
			tb.Errorf("%U reaches the terminal in\n%q", r, text)
			return
		}
	}
}
