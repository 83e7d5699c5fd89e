package nats_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
)

// usersOf returns the users of the README.
func usersOf(t *testing.T) []*server.User {
	t.Helper()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "<!-- tested: permissions_test.go -->\n```\n")
	text, _, ok := strings.Cut(text, "```")
	file := filepath.Join(t.TempDir(), "server.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil || !ok {
		t.Fatal(err, ok)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return opts.Users
}

// SE-03: with the permissions of the README a relay publishes, and a passive consumer receives, retries, releases and
// parks. Another service's consumer can neither read, write, settle, bind nor delete anything of it.
func TestServicesKeepApart(t *testing.T) {
	t.Parallel()
	srv := startServer(t, func(o *server.Options) {
		o.Users = append(usersOf(t), &server.User{Username: "admin", Password: "secret"})
	})
	as := func(user string) string { return strings.Replace(srv.url(), "nats://", "nats://"+user+":secret@", 1) }
	bus := func(user string) *nats.Transport {
		opts := nats.Options{Bus: "shop", Passive: user != "admin", Timeout: 5 * time.Second}
		if user != "admin" {
			opts.Connection = []natsgo.Option{natsgo.CustomInboxPrefix("_INBOX." + user)}
		}
		b, err := nats.Dial(t.Context(), as(user), opts)
		if err != nil {
			t.Fatal(user, err)
		}
		t.Cleanup(func() { _ = b.Close(t.Context()) })
		return b
	}
	subscribe := func(b *nats.Transport, queue string, bindings ...string) core.Receiver {
		r, err := b.Subscribe(t.Context(), core.Subscription{Queue: queue, Bindings: bindings})
		if err != nil {
			t.Fatal(queue, err)
		}
		t.Cleanup(func() { _ = r.Close(t.Context()) })
		return r
	}
	admin := bus("admin")
	for queue, topic := range map[string]string{"billing": "payments.*", "mail": "mails.*"} {
		if err := subscribe(admin, queue, topic).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var batch []waybill.Envelope
	for _, id := range []string{"1", "2", "3", "4"} {
		batch = append(batch, waybill.Envelope{ID: id, Source: "/x", Topic: "payments.made", Type: "x", Body: []byte("true")})
	}
	if err := bus("shop-relay").Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := subscribe(bus("billing"), "billing", "payments.*")
	receive := func(n int) (all []*waybill.Delivery) {
		for len(all) < n {
			ds, err := r.Receive(t.Context(), n-len(all))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ds...)
		}
		return all
	}
	ds := receive(4)
	acks := []core.Ack{core.AckDone(ds[0]), core.AckRetry(ds[1], time.Millisecond, errors.New("again")), core.AckRelease(ds[2]), core.AckReject(ds[3], waybill.ReasonRejected, errors.New("no"))}
	if err := r.Settle(t.Context(), acks).FirstErr(); err != nil {
		t.Fatal(err)
	}

	// The other service attacks while two are under way.
	var denied []error
	nc, err := natsgo.Connect(as("mail"), natsgo.CustomInboxPrefix("_INBOX.mail"), natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, subject := range []string{
		"shop.t.payments.made", "shop.q.billing", "shop-parked.billing", "$JS.ACK.shop.billing.1.1.1.1.1", "$JS.API.CONSUMER.MSG.NEXT.shop.billing",
		"$JS.API.STREAM.MSG.GET.shop", "$JS.API.STREAM.MSG.GET.shop-parked", "$JS.API.STREAM.MSG.DELETE.shop", "$JS.API.DIRECT.GET.shop", "$JS.API.STREAM.PURGE.shop",
		"$JS.API.STREAM.DELETE.shop", "$JS.API.STREAM.UPDATE.shop", "$JS.API.STREAM.CREATE.x", "$JS.API.CONSUMER.CREATE.shop", "$JS.API.CONSUMER.CREATE.shop.x",
		"$JS.API.CONSUMER.DELETE.shop.billing", "$JS.API.CONSUMER.PAUSE.shop.billing", "$JS.API.CONSUMER.INFO.shop.billing", "_INBOX.billing.x",
	} {
		if err := nc.Publish(subject, []byte("forged")); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := nc.LastError(); !errors.Is(err, natsgo.ErrPermissionViolation) || !strings.Contains(err.Error(), `"`+subject+`"`) {
			denied = append(denied, errors.New("it may publish to "+subject))
		}
	}
	for _, subject := range []string{"shop.>", "_INBOX.>", "_INBOX.billing.>", ">"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := nc.LastError(); !errors.Is(err, natsgo.ErrPermissionViolation) || !strings.Contains(err.Error(), `"`+subject+`"`) {
			denied = append(denied, errors.New("it may subscribe to "+subject))
		}
	}
	if err := errors.Join(denied...); err != nil {
		t.Error(err)
	}
	ids := map[string]int{}
	for _, d := range receive(2) {
		ids[d.Envelope.ID+string(d.Envelope.Body)] = d.Attempt
		if err := r.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr(); err != nil {
			t.Error(err)
		}
	}
	if len(ids) != 2 || ids["2true"] != 2 || ids["3true"] != 1 {
		t.Errorf("came: %v", ids)
	}
	if n, err := admin.ParkedDepth(t.Context(), "billing"); n != 1 || err != nil {
		t.Error(n, err)
	}
}
