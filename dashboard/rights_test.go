package dashboard_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
)

// byProxy returns options with a proxy that names users: ada may look, grace may act, edsger may edit.
func byProxy(opts dashboard.Options) dashboard.Options {
	opts.Proxy = dashboard.Proxy{From: []string{"10.0.0.7", "10.1.0.0/16"}, UserHeader: "X-Forwarded-User"}
	opts.Users = map[string]dashboard.User{"ada": {}, "grace": {Right: dashboard.RightAct}, "edsger": {Right: dashboard.RightEdit}}
	return opts
}

// as returns a browser behind the proxy.
func as(t *testing.T, page http.Handler, user string) *browser {
	t.Helper()
	b := visitor(t, page)
	b.remote, b.headers["X-Forwarded-User"] = "10.0.0.7:4000", user
	return b
}

// The server asks for the right, not only the page: the right to look is none to act, and the right to act none to
// edit.
//
// OP-07, SE-07.
func TestRights(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	first, log := open(t, byProxy(d.Options()))
	parked := "/parked/message?id=" + d.Bus.Parked(demo.Queue)[0].Envelope.ID
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	acts := map[string]url.Values{
		"act": {"action": {"redrive"}, "state": {"abandoned"}}, "pause": {"action": {"pause"}, "outbox": {demo.Outbox}, "route": {"default"}},
		"edit": {"action": {"replay"}, "queue": {demo.Queue}, "id": {d.Bus.Parked(demo.Queue)[0].Envelope.ID}, "body": {"{}"}},
	}
	before := states(t, d)
	for user, may := range map[string]string{"ada": "", "barbara": "", "grace": "act pause", "edsger": "act pause edit"} {
		b := as(t, first.page, user)
		form := fields(t, as(t, first.page, "edsger").get(parked, http.StatusOK), "textarea")
		for name, act := range acts {
			for k := range form {
				act.Set(k, form.Get(k))
			}
			act.Set("token", b.token())
			want := http.StatusForbidden
			if strings.Contains(may, name) {
				want = http.StatusOK
			}
			if w := b.send(http.MethodPost, "/preview", act); w.Code != want {
				t.Errorf("%s: preview of %s: status %d, want %d: %s", user, name, w.Code, want, text(w.Body.String()))
			} else if want == http.StatusForbidden {
				has(t, w.Body.String(), "Options.Users")
			}
		}
		forms := map[string]int{parked: 0, "/messages?state=abandoned": 0, "/keys": 0, messageURL(&poison): 0}
		if may != "" {
			forms = map[string]int{parked: 1, "/messages?state=abandoned": 1, "/keys": 1, messageURL(&poison): 1}
		}
		if user == "edsger" {
			forms[parked]++
		}
		for target, n := range forms {
			if page := b.get(target, http.StatusOK); strings.Count(page, `method="post"`) != n {
				t.Errorf("%s: %s has %d forms, want %d", user, target, strings.Count(page, `method="post"`), n)
			}
		}
	}
	// A preview that one user was shown cannot be confirmed by another user, although the browser is the same.
	b := as(t, first.page, "edsger")
	preview := fields(t, b.ask(parked, "replay", url.Values{"body": {"{}"}}), `name="sealed"`)
	for user, want := range map[string]int{"grace": http.StatusBadRequest, "ada": http.StatusBadRequest} {
		if b.headers["X-Forwarded-User"] = user; b.send(http.MethodPost, "/do", preview).Code != want {
			t.Errorf("%s did what edsger was shown", user)
		}
	}
	if after := states(t, d); !equal(before, after) || len(log.lines("event=dashboard.action")) != 0 {
		t.Errorf("something has changed: %v", after)
	}
}

// token returns the token of the forms, which the page of the login has for everybody.
func (b *browser) token() string {
	b.t.Helper()
	return fields(b.t, b.get("/login", http.StatusOK), "password").Get("token")
}

// A body is edited one message at a time, and only by a user who has seen it.
// OP-07
func TestEditsAreForOneMessageThatIsShown(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	id := d.Bus.Parked(demo.Queue)[0].Envelope.ID
	before := states(t, d)
	for name, change := range map[string]func(*dashboard.Options){
		"hidden": func(o *dashboard.Options) { o.ShowBodies = false },
		"masked": func(o *dashboard.Options) { o.Mask = func(*waybill.Envelope) []byte { return []byte("{}") } },
		"shown":  func(*dashboard.Options) {},
	} {
		opts := d.Options()
		change(&opts)
		b, log := open(t, opts)
		form := fields(t, b.get("/parked/message?id="+id, http.StatusOK), "replay")
		form.Set("action", "replay")
		for _, body := range []string{"{}", ""} {
			form.Set("body", body)
			want := http.StatusForbidden
			if name == "shown" {
				want = http.StatusOK
			}
			if w := b.send(http.MethodPost, "/preview", form); w.Code != want {
				t.Errorf("%s: status %d, want %d", name, w.Code, want)
			}
		}
		for _, several := range []url.Values{{"reason": {"rejected"}}, {"all": {"1"}}, {"topic": {demo.TopicOrders}}, {"error": {"total"}}} {
			several.Set("token", form.Get("token"))
			several.Set("queue", demo.Queue)
			several.Set("action", "replay")
			several.Set("body", "{}")
			if w := b.send(http.MethodPost, "/preview", several); w.Code != http.StatusBadRequest {
				t.Errorf("%s: one body for %v: status %d", name, several, w.Code)
			}
		}
		form.Set("action", "purgeparked")
		if w := b.send(http.MethodPost, "/preview", form); w.Code != http.StatusBadRequest {
			t.Errorf("%s: a body for a purge: status %d", name, w.Code)
		}
		if lines := log.lines("event=dashboard.begin"); len(lines) != 0 {
			t.Errorf("%s: lines in the log: %q", name, lines)
		}
	}
	if after := states(t, d); !equal(before, after) {
		t.Errorf("something has changed: %v", after)
	}
}

// An edit logs the user, the old body and the new one, before it begins and when it has ended.
// OP-07
func TestEditsAreInTheLog(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	p := d.Bus.Parked(demo.Queue)[0]
	first, log := open(t, byProxy(d.Options()))
	b := as(t, first.page, "edsger")
	b.headers["X-Forwarded-For"] = "192.0.2.9, 203.0.113.5"
	has(t, b.confirm(b.ask("/parked/message?id="+p.Envelope.ID, "replay", url.Values{"body": {`{"total":1}`}})), "1 message replayed")
	if !replayed(`{"total":1}`)(t, d) {
		t.Error("it is not replayed")
	}
	want := []string{
		"user=edsger", "via=proxy", "remote=10.0.0.7:4000", "client=203.0.113.5", "action=replay", "queue=" + demo.Queue, "id%3D", "position%3D",
		fmt.Sprintf("before=%x", sha256.Sum256(p.Envelope.Body)), fmt.Sprintf("after=%x", sha256.Sum256([]byte(`{"total":1}`))),
	}
	begin, end := log.lines("event=dashboard.begin"), log.lines("event=dashboard.action")
	if len(begin) != 1 || len(end) != 1 {
		t.Fatalf("lines: %q, %q", begin, end)
	}
	for _, w := range want {
		w = strings.ReplaceAll(w, "%3D", "=")
		if !strings.Contains(begin[0], w) || !strings.Contains(end[0], w) {
			t.Errorf("the lines do not say %s: %q, %q", w, begin[0], end[0])
		}
	}
	if !strings.Contains(end[0], "ids=["+p.Envelope.ID+"]") {
		t.Errorf("the last line does not name the message: %q", end[0])
	}
}

// An edit of a message that has changed since it was shown is not done.
// OP-07
func TestEditOfAnotherBody(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, _ := open(t, d.Options())
	p := d.Bus.Parked(demo.Queue)[0]
	preview := b.ask("/parked/message?id="+p.Envelope.ID, "replay", url.Values{"body": {`{"total":1}`}})
	edit := func(admin.Parked) ([]byte, error) { return []byte(`{"order":"another"}`), nil }
	if _, err := d.Bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: demo.Queue, All: true, Edit: edit}); err != nil {
		t.Fatal(err)
	}
	park(t, d)
	has(t, b.confirm(preview), "another one than the one that was shown")
	if list := d.Bus.Parked(demo.Queue); len(list) != 1 || string(list[0].Envelope.Body) != `{"order":"another"}` {
		t.Errorf("parked: %+v", list)
	}
}

// park gives up what is in the queue.
func park(t *testing.T, d *demo.Demo) {
	t.Helper()
	r, err := d.Bus.Subscribe(t.Context(), core.Subscription{Queue: demo.Queue})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(t.Context()) }()
	got, err := r.Receive(t.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d messages: %v", len(got), err)
	}
	ack := core.AckReject(got[0], waybill.ReasonRejected, errors.New("the order has no total"))
	if err := r.Settle(t.Context(), []core.Ack{ack})[0]; err != nil {
		t.Fatal(err)
	}
}

// A proxy's header counts from the proxy's address only, and from there it is the only way in.
// OP-07
func TestUsersOfAProxy(t *testing.T) {
	t.Parallel()
	first, _ := open(t, byProxy(empty(t)))
	for _, tc := range []struct {
		remote string
		users  []string
		want   int
	}{
		{"10.0.0.7:4000", []string{"ada"}, http.StatusOK},
		{"[::ffff:10.0.0.7]:4000", []string{"ada"}, http.StatusOK},
		{"10.1.255.1:4000", []string{"nobody known"}, http.StatusOK},
		{"10.0.0.7:4000", nil, http.StatusForbidden},
		{"10.0.0.7:4000", []string{""}, http.StatusForbidden},
		{"10.0.0.7:4000", []string{"ada", "grace"}, http.StatusForbidden},
		{"10.0.0.7:4000", []string{"a\x1bda"}, http.StatusForbidden},
		{"10.0.0.7:4000", []string{strings.Repeat("a", 201)}, http.StatusForbidden},
		{"10.0.0.8:4000", []string{"ada"}, http.StatusForbidden},
		{"127.0.0.1:4000", []string{"ada"}, http.StatusForbidden},
		{"", []string{"ada"}, http.StatusForbidden},
	} {
		b := visitor(t, first.page)
		r := b.request(http.MethodGet, "/", nil)
		r.RemoteAddr = tc.remote
		for _, user := range tc.users {
			r.Header.Add("X-Forwarded-User", user)
		}
		w := serve(b, r)
		if w.Code != tc.want {
			t.Errorf("%s %q: status %d, want %d", tc.remote, tc.users, w.Code, tc.want)
		}
		if tc.want == http.StatusOK {
			has(t, w.Body.String(), tc.users[0])
		}
	}
	// Users with passwords come in from elsewhere, and the proxy's header does not change the user.
	opts := byProxy(empty(t))
	opts.Users["alan"] = empty(t, "alan").Users["alan"]
	b, _ := open(t, opts)
	b.headers["X-Forwarded-User"] = "edsger"
	if w := b.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
		t.Errorf("from elsewhere: status %d", w.Code)
	}
	b.login("alan", "secret of alan")
	has(t, b.get("/", http.StatusOK), "alan", "Log out")
}
