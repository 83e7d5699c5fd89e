package nats_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// configuration returns the accounts and users of the README.
func configuration(t *testing.T) *server.Options {
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
	return opts
}

// SE-03: with the accounts of the README a relay publishes its own topics, and a passive consumer receives, retries,
// releases and parks. Another service's consumer and relay can neither read, write, settle, bind nor delete anything of
// it: not by a request, and not by having the server send an answer to a subject of the other.
func TestServicesKeepApart(t *testing.T) {
	t.Parallel()
	srv := startServer(t, func(o *server.Options) {
		set := configuration(t)
		o.Accounts, o.Users = set.Accounts, set.Users
	})
	as := func(user string) string { return strings.Replace(srv.url(), "nats://", "nats://"+user+":secret@", 1) }
	bus := func(user string) *nats.Transport {
		b, err := nats.Dial(t.Context(), as(user), nats.Options{Bus: "shop", Passive: user != "deploy", Timeout: 5 * time.Second})
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
	admin := bus("deploy")
	for queue, topic := range map[string]string{"billing": "payments.*", "mail": "mails.*"} {
		if err := subscribe(admin, queue, topic).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	batch := func(topic string, ids ...string) (all []waybill.Envelope) {
		for _, id := range ids {
			all = append(all, waybill.Envelope{ID: id, Source: "/x", Topic: topic, Type: "x", Body: []byte("true")})
		}
		return all
	}
	relay := bus("payments")
	if err := relay.Publish(t.Context(), batch("payments.made", "1", "2", "3", "4")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := relay.Publish(t.Context(), batch("mails.opened", "5"))[0]; err == nil {
		t.Error("a relay publishes a topic of another service")
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

	// The others attack while two are under way.
	root, err := natsgo.Connect(as("deploy"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	js, err := jetstream.New(root)
	if err != nil {
		t.Fatal(err)
	}
	// All that is stored for others than mail, and whether their consumers are there.
	state := func() (text string) {
		for _, name := range []string{"shop", "shop-parked"} {
			s, err := js.Stream(t.Context(), name)
			if err != nil {
				return text + err.Error()
			}
			info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
			if err != nil {
				t.Fatal(err)
			}
			delete(info.State.Subjects, "shop.q.mail")
			delete(info.State.Subjects, "shop-parked.mail")
			text += fmt.Sprintln(name, info.State.Subjects, info.State.Consumers, info.Config.Subjects)
		}
		return text
	}
	before := state()
	const pull = "$JS.API.CONSUMER.MSG.NEXT.shop.mail"
	ask := fmt.Appendf(nil, `{"batch":1000,"expires":%d,"idle_heartbeat":%d}`, 400*time.Millisecond, 150*time.Millisecond)
	for _, user := range []string{"mail", "payments"} {
		nc, err := natsgo.Connect(as(user), natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		forged := &natsgo.Msg{Header: natsgo.Header{"ce-id": {"pay-77"}, "ce-source": {"/payments"}, "ce-topic": {"payments.made"}, "ce-type": {"x"}}, Data: []byte("forged")}
		publish := func(subject, reply string, data []byte) {
			m := &natsgo.Msg{Subject: subject, Reply: reply, Header: forged.Header, Data: data}
			if data != nil {
				m.Header = nil
			} else {
				m.Data = forged.Data
			}
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		targets := []string{
			"shop.t.mails.opened", "shop.q.billing", "shop-parked.billing", "$JS.ACK.shop.billing.1.1.1.1.1", "$JS.API.CONSUMER.MSG.NEXT.shop.billing",
			"$JS.API.STREAM.MSG.GET.shop", "$JS.API.STREAM.MSG.GET.shop-parked", "$JS.API.STREAM.MSG.DELETE.shop", "$JS.API.DIRECT.GET.shop", "$JS.API.STREAM.PURGE.shop",
			"$JS.API.STREAM.DELETE.shop", "$JS.API.STREAM.DELETE.shop-parked", "$JS.API.STREAM.UPDATE.shop", "$JS.API.STREAM.CREATE.x", "$JS.API.CONSUMER.CREATE.shop",
			"$JS.API.CONSUMER.CREATE.shop.x", "$JS.API.CONSUMER.DELETE.shop.billing", "$JS.API.CONSUMER.PAUSE.shop.billing", "$JS.API.CONSUMER.LEADER.STEPDOWN.shop.billing",
		}
		if user == "mail" {
			targets = append(targets, "shop.t.payments.made")
		}
		answers, end := nc.NewInbox(), nc.NewInbox()
		last, err := nc.SubscribeSync(end)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range targets {
			publish(target, answers, nil)
			publish(target, answers, []byte{})
			for _, subject := range []string{pull, "$JS.API.STREAM.INFO.shop", "$JS.API.CONSUMER.LIST.shop", "shop.q.mail", "shop.t.payments.made"} {
				data := []byte(nil)
				if strings.HasPrefix(subject, "$") {
					data = []byte{}
				}
				if user == "payments" && subject == "shop.t.payments.made" {
					continue // it is its own
				}
				if subject == pull {
					data = ask
				}
				publish(subject, target, data)
			}
		}
		// Its own pull ends later than all before it.
		if user == "mail" {
			publish("shop.q.mail", "", nil)
			publish(pull, end, ask)
			ctx, _ := patience.Context(t.Context(), patience.Limit)
			for ended := false; !ended; {
				m, err := last.NextMsgWithContext(ctx)
				if err != nil {
					t.Fatalf("the server ends no pull any more: %v\n%s", err, state())
				}
				ended = m.Header.Get("Status") == "408"
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if after := state(); after != before {
		t.Errorf("after the attack:\n%s\nbefore it:\n%s", after, before)
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
