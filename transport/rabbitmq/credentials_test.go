package rabbitmq_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// anonymous returns the URL without its user.
func anonymous(raw string) string {
	scheme, rest, _ := strings.Cut(raw, "://")
	_, host, _ := strings.Cut(rest, "@")
	return scheme + "://" + host
}

// vault returns credentials as a service for secrets does.
type vault struct {
	user     string
	password atomic.Pointer[string]
	calls    atomic.Int32
}

func (v *vault) set(password string) { v.password.Store(&password) }

func (v *vault) get(context.Context) (rabbitmq.Credentials, error) {
	v.calls.Add(1)
	return rabbitmq.Credentials{User: v.user, Password: *v.password.Load()}, nil
}

// RM-10: a password that was changed on the broker works at the next reconnect, on both sides and for the management
// API. Open connections live on. Until the function knows it, that is an outage, which heals by itself.
func TestRotatedPassword(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
	secrets := &vault{user: newUser(t, mq, "rotating")}
	secrets.set(password)
	if err := mq.SetPermissions(t.Context(), mq.VHost, secrets.user, ".*", ".*", ".*"); err != nil {
		t.Fatal(err)
	}
	rotate := func(to string) {
		t.Helper()
		properties := map[string]string{"password": to, "tags": "management"}
		if err := mq.Do(t.Context(), http.MethodPut, "/api/users/"+secrets.user, properties, nil); err != nil {
			t.Fatal(err)
		}
	}
	var log sharedtest.Log
	bus := dial(t, anonymous(proxy.URL(mq.URL)), rabbitmq.Options{
		Connection: rabbitmq.ConnectionOptions{Credentials: secrets.get}, ManagementURL: mq.ManagementURL,
		ReconnectMax: 50 * time.Millisecond, Logger: log.Logger(slog.LevelDebug),
	})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	round := func(id string) bool {
		t.Helper()
		if bus.Publish(t.Context(), []waybill.Envelope{envelope(id, "a")}).FirstErr() != nil {
			return false
		}
		d := receive(t, r, 1)[0]
		settle(t, r, core.AckDone(d))
		return d.Envelope.ID == id
	}
	if !round("m1") {
		t.Fatal("nothing works")
	}
	rotate("second-" + password)
	calls := secrets.calls.Load()
	if !round("m2") || secrets.calls.Load() != calls || strings.Contains(log.String(), "rabbitmq.lost") {
		t.Error("the open connections did not live on")
	}
	proxy.Cut()
	patience.Until(t, "the broker refuses the old password", func() bool {
		err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr()
		if err == nil || waybill.ClassOf(err) != waybill.ClassOutage || strings.Contains(err.Error(), password) {
			t.Fatalf("got %v", err)
		}
		return errors.Is(err, waybill.ErrMisconfigured)
	})
	if _, err := bus.Drift(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("the management API takes the old password: %v", err)
	}
	secrets.set("second-" + password)
	patience.Until(t, "it works with the new password", func() bool { return round("m3") })
	if found, err := bus.Drift(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("drift: %v, %v", found, err)
	}
	if strings.Contains(log.String(), password) {
		t.Errorf("the log holds a password:\n%s", log.String())
	}
}

// RM-10: the error names the fault of the function, and nothing crashes or hangs.
func TestCredentialsThatFail(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	var running, most atomic.Int32
	for _, c := range []struct {
		name          string
		ask           func(context.Context) (rabbitmq.Credentials, error)
		says          string
		misconfigured bool
	}{
		{"error", func(context.Context) (rabbitmq.Credentials, error) {
			return rabbitmq.Credentials{}, errors.New("the vault is sealed")
		}, "Connection.Credentials failed: the vault is sealed", false},
		{"panic", func(context.Context) (rabbitmq.Credentials, error) {
			panic(errors.New(password))
		}, "panicked with a value of type *errors.errorString", true},
		{"no user", func(context.Context) (rabbitmq.Credentials, error) {
			return rabbitmq.Credentials{Password: password}, nil
		}, "returned no User", true},
		{"NUL", func(context.Context) (rabbitmq.Credentials, error) {
			return rabbitmq.Credentials{User: "u", Password: password + "\x00"}, nil
		}, "with a NUL", true},
		{"stuck", func(context.Context) (rabbitmq.Credentials, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			<-stuck
			return rabbitmq.Credentials{}, nil
		}, "has not returned in time", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			limit := time.Minute // an answer that comes is not missed on a busy machine
			if c.name == "stuck" {
				limit = 50 * time.Millisecond
			}
			bus := dial(t, "amqp://127.0.0.1:1/", rabbitmq.Options{
				Lazy: true, Connection: rabbitmq.ConnectionOptions{Credentials: c.ask}, ConnectTimeout: limit,
				ReconnectMax: 10 * time.Millisecond,
			})
			for range 3 {
				err := bus.Check(t.Context())
				if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) != c.misconfigured ||
					!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), password) {
					t.Errorf("got %v", err)
				}
			}
			if n := most.Load(); n > 1 {
				t.Errorf("%d calls at a time", n)
			}
		})
	}
}

// RM-10: user and function together are refused, as is a function with New. Printed credentials show no password.
func TestCredentialsAndUser(t *testing.T) {
	t.Parallel()
	ask := (&vault{}).get
	opts := rabbitmq.Options{Lazy: true, Connection: rabbitmq.ConnectionOptions{Credentials: ask}}
	for _, url := range []string{"amqp://u:hunter2@h/", "amqp://u@h/", "amqp://h/?auth_mechanism=external"} {
		_, err := rabbitmq.Dial(t.Context(), url, opts)
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "remove both from the URL, or leave Connection.Credentials nil") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
	conn, err := amqp.Dial(testenv.RabbitMQ(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := rabbitmq.New(conn, opts); !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "Connection.Credentials: ") {
		t.Errorf("New: %v", err)
	}
	c := rabbitmq.Credentials{User: "u", Password: password, Expires: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(verb, c); s != "u until 2026-03-04T05:06:07Z" {
			t.Errorf("%s shows %s", verb, s)
		}
	}
}

// tokenIssuer signs OAuth 2 tokens. config are the lines by which a broker knows it.
type tokenIssuer struct {
	key    *rsa.PrivateKey
	config []string
}

func newTokenIssuer(t *testing.T) *tokenIssuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "issuer.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tokenIssuer{key: key, config: []string{
		"auth_backends.1 = internal", "auth_backends.2 = rabbit_auth_backend_oauth2",
		"auth_oauth2.resource_server_id = rabbitmq", "auth_oauth2.default_key = k1", "auth_oauth2.signing_keys.k1 = " + file,
	}}
}

// token returns a signed token that permits scope for an hour.
func (i *tokenIssuer) token(scope ...string) (string, error) {
	part := func(v any) string {
		b, _ := json.Marshal(v) //nolint:errchkjson // strings and numbers
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(map[string]any{"alg": "RS256", "typ": "JWT", "kid": "k1"}) + "." + part(map[string]any{
		"aud": []string{"rabbitmq"}, "sub": "shop", "exp": time.Now().Add(time.Hour).Unix(), "scope": scope,
	})
	sum := sha256.Sum256([]byte(text))
	sign, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	return text + "." + base64.RawURLEncoding.EncodeToString(sign), err
}

// RM-10: a connection gets the next token before the one that it was opened with is over, even if the first attempt to
// get that fails. What only the next one permits shows that the broker took it. So no token has to end.
func testOAuth2(t *testing.T, broker *testenv.RabbitMQServer, issuer *tokenIssuer) {
	t.Helper()
	mq := vhost(t, broker)
	const (
		first = iota // may read from one queue and publish nothing
		fails
		next // may do everything
	)
	var phase atomic.Int32
	ask := func(context.Context) (rabbitmq.Credentials, error) {
		// said, to be asked again soon
		c := rabbitmq.Credentials{User: "shop", Expires: time.Now().Add(time.Second)}
		scope := []string{"rabbitmq.configure:*/*", "rabbitmq.write:*/*/nothing", "rabbitmq.read:*/waybill*/*", "rabbitmq.read:*/before"}
		switch {
		case phase.CompareAndSwap(fails, next):
			return c, errors.New("no answer of the issuer")
		case phase.Load() == next:
			scope = []string{"rabbitmq.configure:*/*", "rabbitmq.write:*/*/*", "rabbitmq.read:*/*/*"}
		}
		var err error
		c.Password, err = issuer.token(scope...)
		return c, err
	}
	var log sharedtest.Log
	bus := dial(t, anonymous(mq.URL), rabbitmq.Options{
		Connection: rabbitmq.ConnectionOptions{Credentials: ask}, PublishConnections: 1, Logger: log.Logger(slog.LevelDebug),
	})
	before := subscribe(t, bus, core.Subscription{Queue: "before", Bindings: []string{"#"}})
	more := core.Subscription{Queue: "after", Bindings: []string{"#"}}
	if _, err := bus.Subscribe(t.Context(), more); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Fatalf("the first token permits too much: %v", err)
	}
	if err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr(); err == nil || !strings.Contains(err.Error(), "may not publish") {
		t.Fatalf("the first token permits too much: %v", err)
	}
	phase.Store(fails)
	var after core.Receiver
	patience.Until(t, "the connection that consumes has the next token", func() (ok bool) {
		var err error
		after, err = bus.Subscribe(t.Context(), more)
		return err == nil
	})
	closeLater(t, after)
	patience.Until(t, "the connection that publishes has the next token", func() bool {
		return bus.Publish(t.Context(), envelopes(1, "a")).FirstErr() == nil
	})
	for _, r := range []core.Receiver{before, after} {
		for _, d := range receive(t, r, 1) {
			settle(t, r, core.AckReject(d, waybill.ReasonRejected, errors.New("no")))
		}
	}
	text := log.String()
	if strings.Contains(text, "event=rabbitmq.lost") || !strings.Contains(text, "event=rabbitmq.credentials_failed") ||
		!strings.Contains(text, "no answer of the issuer") || !strings.Contains(text, "event=rabbitmq.credentials_renewed") {
		t.Errorf("the log says\n%s", text)
	}
	if strings.Contains(text, "eyJ") {
		t.Errorf("the log holds a token:\n%s", text)
	}
}
