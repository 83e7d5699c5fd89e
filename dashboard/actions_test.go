package dashboard_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// states describes all that an action can change.
func states(t *testing.T, d *demo.Demo) map[string]string {
	t.Helper()
	out := map[string]string{}
	l, err := d.Store.List(t.Context(), admin.Filter{}, admin.PageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Records {
		s := &l.Records[i]
		out[s.Envelope.ID] = s.State.String() + " " + string(s.Reason)
		if s.DueIn > 0 {
			out[s.Envelope.ID] += " later"
		}
	}
	for _, p := range d.Bus.Parked(demo.Queue) {
		out["parked "+p.Envelope.ID] = string(p.Envelope.Body)
	}
	for _, c := range d.Relay.Health(t.Context()).Checks {
		if strings.HasPrefix(c.Name, "route ") {
			out[c.Name] = c.Text
		}
	}
	return out
}

func equal(a, b map[string]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// A preview changes nothing. A confirmed action is done, and leaves one line in the log.
// OP-07
func TestActions(t *testing.T) {
	t.Parallel()
	poison := func(t *testing.T, d *demo.Demo) string {
		t.Helper()
		s := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
		return messageURL(&s)
	}
	parked := func(_ *testing.T, d *demo.Demo) string {
		return "/parked/message?queue=" + demo.Queue + "&id=" + d.Bus.Parked(demo.Queue)[0].Envelope.ID
	}
	at := func(target string) func(*testing.T, *demo.Demo) string {
		return func(*testing.T, *demo.Demo) string { return target }
	}
	for _, tc := range []struct {
		name, action string
		target       func(*testing.T, *demo.Demo) string
		more         url.Values
		asks, result string
		check        func(t *testing.T, d *demo.Demo) bool
	}{
		{"send one again", "redrive", poison, nil, "1 message would be sent again", "1 sent again, of 1 that matched", func(t *testing.T, d *demo.Demo) bool {
			t.Helper()
			return find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}}).State == core.StatePending
		}},
		{"send all again", "redrive", at("/messages?state=abandoned"), nil, "1 message would be sent again, of 2 messages that match. Outbox shop State abandoned Refused 1: later messages of the same key", "1 sent again, of 2", func(t *testing.T, d *demo.Demo) bool {
			t.Helper()
			return find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}}).State == core.StatePending
		}},
		{"delete one", "purge", poison, nil, "1 message would be deleted for good", "1 deleted, of 1", gone(demo.TopicPoison)},
		{"delete all of a topic", "purge", at("/messages?topic=" + demo.TopicNobody), nil, "1 message would be deleted for good", "1 deleted, of 1", gone(demo.TopicNobody)},
		{"delete what waits", "purge", at("/messages?key=order-107"), url.Values{"waiting": {"on"}}, "1 message would be deleted", "1 deleted", gone(demo.TopicLater)},
		{"skip", "skip", at("/keys"), nil, "The message is given up, for good.", "done", head(core.StateAbandoned, waybill.ReasonSkipped)},
		{"put aside", "aside", at("/keys"), nil, "put aside, to be sent some day out of order", "done", head(core.StateAbandoned, waybill.ReasonSetAside)},
		{"try again at once", "requeue", at("/keys"), nil, "tried again at once, at its place", "done", func(t *testing.T, d *demo.Demo) bool {
			t.Helper()
			l, err := d.Store.List(t.Context(), admin.Filter{Keys: []string{demo.BlockedKey}}, admin.PageRequest{})
			return err == nil && l.Records[0].State == core.StatePending && l.Records[0].DueIn == 0
		}},
		{"replay one", "replay", parked, nil, "1 message would go back into the queue", "1 message replayed", replayed(`{"order":6,"customer":{"name":"Grace","city":"Oslo"}}`)},
		{"replay all", "replay", at("/parked"), nil, "1 message would go back into the queue", "1 message replayed", replayed(`{"order":6,"customer":{"name":"Grace","city":"Oslo"}}`)},
		{
			"mend and replay", "replay", parked,
			url.Values{"body": {"{\r\n\"total\":1}"}},
			"with a body of 12 bytes", "1 message replayed",
			replayed("{\n\"total\":1}"),
		},
		{"delete a parked one", "purgeparked", parked, nil, "1 message would be deleted for good", "1 message deleted", func(_ *testing.T, d *demo.Demo) bool {
			return len(d.Bus.Parked(demo.Queue)) == 0
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := newShop(t)
			opts := d.Options()
			b, log := open(t, opts)
			before := states(t, d)
			preview := b.ask(tc.target(t, d), tc.action, tc.more)
			has(t, preview, tc.asks, "Leave it")
			if after := states(t, d); !equal(before, after) {
				t.Errorf("the preview has changed something: %v, before %v", after, before)
			}
			has(t, b.confirm(preview), tc.result)
			if !tc.check(t, d) {
				t.Errorf("it is not done: %v", states(t, d))
			}
			lines := log.lines("event=dashboard.action")
			if len(lines) != 1 || !strings.Contains(lines[0], "action="+tc.action) || !strings.Contains(lines[0], tc.result) || !strings.Contains(lines[0], "remote=127.0.0.1:40000") {
				t.Errorf("the lines in the log: %q", lines)
			}
		})
	}
}

func gone(topic string) func(*testing.T, *demo.Demo) bool {
	return func(t *testing.T, d *demo.Demo) bool {
		t.Helper()
		l, err := d.Store.List(t.Context(), admin.Filter{Topics: []string{topic}}, admin.PageRequest{})
		return err == nil && len(l.Records) == 0
	}
}

// head returns a check that the head of the blocked key has ended, and that only it has.
func head(state core.State, reason waybill.Reason) func(*testing.T, *demo.Demo) bool {
	return func(t *testing.T, d *demo.Demo) bool {
		t.Helper()
		l, err := d.Store.List(t.Context(), admin.Filter{Keys: []string{demo.BlockedKey}}, admin.PageRequest{})
		return err == nil && len(l.Records) == 3 && l.Records[0].State == state && l.Records[0].Reason == reason && l.Records[1].State == core.StatePending
	}
}

// replayed returns a check that a message is back in the queue with a body.
func replayed(body string) func(*testing.T, *demo.Demo) bool {
	return func(t *testing.T, d *demo.Demo) bool {
		t.Helper()
		if len(d.Bus.Parked(demo.Queue)) != 0 {
			return false
		}
		r, err := d.Bus.Subscribe(t.Context(), core.Subscription{Queue: demo.Queue})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close(t.Context()) }()
		got, err := r.Receive(t.Context(), 1)
		return err == nil && len(got) == 1 && string(got[0].Envelope.Body) == body
	}
}

// OP-07
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- d.Relay.Run(ctx) }()
	paused := func() bool { return strings.HasPrefix(states(t, d)["route default"], "paused") }
	patience.Until(t, "the relay runs", func() bool { return states(t, d)["route default"] != "" })
	b, log := open(t, d.Options())
	preview := b.ask("/", "pause", nil)
	has(t, preview, "stops publishing route default of shop")
	if paused() {
		t.Error("the preview has paused the route")
	}
	has(t, b.confirm(preview), "done")
	patience.Until(t, "the route is paused", paused)
	other, _ := open(t, d.Options()) // which asks anew
	has(t, other.get("/", http.StatusOK), "shop: route default: paused")
	has(t, other.confirm(other.ask("/", "resume", nil)), "done")
	patience.Until(t, "the route is not paused", func() bool { return !paused() })
	if lines := log.lines("event=dashboard.action"); len(lines) != 1 || !strings.Contains(lines[0], "route=default") || !strings.Contains(lines[0], "action=pause") {
		t.Errorf("the lines in the log: %q", lines)
	}
	if stop(); <-ended != nil {
		t.Error("the relay has ended with an error")
	}
}

// An action on more messages than a page holds does them all, and says how many.
// OP-07
func TestActionsOnManyMessages(t *testing.T) {
	t.Parallel()
	const n, topic = 2*admin.MaxPageLimit + 500, "orders.later"
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	tx := store.Begin()
	for range n {
		if _, err := store.Stage(t.Context(), tx, waybill.RawMessage(topic, "text/plain", nil, waybill.Delay(time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: store}}})
	preview := b.ask("/messages?topic="+topic, "purge", url.Values{"waiting": {"on"}})
	has(t, preview, "at least")
	has(t, b.confirm(preview), "2 500 deleted, of 2 500 that matched")
	l, err := store.List(t.Context(), admin.Filter{Topics: []string{topic}}, admin.PageRequest{})
	if err != nil || len(l.Records) != 0 {
		t.Errorf("%d or more are left, %v", len(l.Records), err)
	}
}

// A replay that is refused for the sake of order can be sent all the same, after another look.
// OP-07
func TestSendWhatIsRefused(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, _ := open(t, d.Options())
	refused := b.ask("/messages?topic="+demo.TopicNobody, "redrive", nil)
	has(t, refused, "0 messages would be sent again", "Nothing would change.")
	form := fields(t, refused, `name="force"`)
	form.Set("action", "redrive")
	preview := b.send(http.MethodPost, "/preview", form).Body.String()
	has(t, preview, "1 message would be sent again")
	has(t, b.confirm(preview), "1 sent again")
	if s := find(t, d, admin.Filter{Topics: []string{demo.TopicNobody}}); s.State != core.StatePending {
		t.Errorf("the message is %s", s.State)
	}
}

// A record that vanishes between the preview and the confirmation is not touched, and the answer says so.
// OP-07
func TestMessageThatVanishesAfterThePreview(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, log := open(t, d.Options())
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	again, skip := b.ask(messageURL(&poison), "redrive", nil), b.ask("/keys", "skip", nil)
	replay := b.ask("/parked/message?id="+d.Bus.Parked(demo.Queue)[0].Envelope.ID, "replay", nil)
	if _, err := d.Store.PurgeRecords(t.Context(), admin.PurgeRequest{Filter: admin.Filter{Routes: []string{waybill.DefaultRoute}}, Waiting: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Bus.PurgeParked(t.Context(), admin.ParkedRequest{Queue: demo.Queue, All: true}); err != nil {
		t.Fatal(err)
	}
	before := states(t, d)
	has(t, b.confirm(again), "0 sent again, of 0 that matched")
	has(t, b.confirm(skip), "not found")
	has(t, b.confirm(replay), "0 messages replayed")
	if after := states(t, d); !equal(before, after) {
		t.Errorf("something has changed: %v, before %v", after, before)
	}
	if lines := log.lines("event=dashboard.action"); len(lines) != 3 {
		t.Errorf("the lines in the log: %q", lines)
	}
}

// An action that would touch everything, or whose preview was not shown, is not done.
// OP-07
func TestOnlyWhatWasShownIsDone(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, log := open(t, d.Options())
	before := states(t, d)
	preview := b.ask("/messages?state=abandoned", "redrive", nil)
	form := fields(t, preview, `name="sealed"`)
	form.Set("sealed", strings.Replace(form.Get("sealed"), "abandoned", "pending", 1))
	if w := b.send(http.MethodPost, "/do", form); w.Code != http.StatusBadRequest {
		t.Errorf("a form that was changed: status %d", w.Code)
	}
	other := visitor(t, b.page)
	other.get("/", http.StatusOK)
	form = fields(t, preview, `name="sealed"`)
	form["token"] = fields(t, other.get("/keys", http.StatusOK), "token")["token"]
	if w := other.send(http.MethodPost, "/do", form); w.Code != http.StatusBadRequest {
		t.Errorf("what somebody else was shown: status %d", w.Code)
	}
	token := form["token"]
	for action, want := range map[string]int{"redrive": http.StatusBadRequest, "purge": http.StatusBadRequest, "replay": http.StatusBadRequest, "purgeparked": http.StatusBadRequest, "format": http.StatusNotFound} {
		if w := other.send(http.MethodPost, "/preview", url.Values{"token": token, "action": {action}}); w.Code != want {
			t.Errorf("%s of everything: status %d: %s", action, w.Code, text(w.Body.String()))
		}
	}
	if after := states(t, d); !equal(before, after) {
		t.Errorf("something has changed: %v", after)
	}
	if lines := log.lines("event=dashboard.action"); len(lines) != 0 {
		t.Errorf("lines in the log: %q", lines)
	}
}

// A dashboard that is read-only has no form that acts, and no address for one.
// OP-07
func TestReadOnly(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	opts := d.Options()
	opts.ReadOnly, opts.Users = true, empty(t, "ada").Users
	b, _ := open(t, opts)
	b.login("ada", "secret of ada")
	before := states(t, d)
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	for _, target := range []string{"/", "/messages?state=abandoned", messageURL(&poison), "/keys", "/schedule", "/parked", "/parked/message?position=1"} {
		page := b.get(target, http.StatusOK)
		if strings.Count(page, `method="post"`) != 1 || !strings.Contains(page, `action="/logout"`) || strings.Contains(page, "<textarea") {
			t.Errorf("%s has a form that acts", target)
		}
		has(t, page, "read only")
	}
	for _, target := range []string{"/do", "/preview"} {
		form := fields(t, b.get("/", http.StatusOK), "Log out") // with the token of the session
		form.Set("action", "redrive")
		form.Set("state", "abandoned")
		if w := b.send(http.MethodPost, target, form); w.Code != http.StatusNotFound {
			t.Errorf("POST %s: status %d", target, w.Code)
		}
	}
	if after := states(t, d); !equal(before, after) {
		t.Errorf("something has changed: %v", after)
	}
}
