package dashboard_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/store/memory"
)

// empty returns the options of a dashboard over an empty outbox, with users.
func empty(t *testing.T, users ...string) dashboard.Options {
	t.Helper()
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	opts := dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: store}}, Users: map[string]string{}}
	for _, user := range users {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret of "+user), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		opts.Users[user] = string(hash)
	}
	return opts
}

// login tries to log in.
func (b *browser) login(user, password string) *httptest.ResponseRecorder {
	b.t.Helper()
	token := fields(b.t, b.get("/login", http.StatusOK), "password")["token"]
	return b.send(http.MethodPost, "/login", url.Values{"token": token, "user": {user}, "password": {password}})
}

// OP-07
func TestLogin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, log := open(t, empty(t, "ada", "grace"))
		b.remote, b.host = "192.0.2.7:1000", "ops.example"
		if w := b.send(http.MethodGet, "/messages", nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
			t.Errorf("without a session: status %d, to %q", w.Code, w.Header().Get("Location"))
		}
		for _, target := range []string{"/do", "/preview", "/nothing"} {
			token := fields(t, b.get("/login", http.StatusOK), "password")
			if w := b.send(http.MethodPost, target, token); w.Code != http.StatusUnauthorized {
				t.Errorf("POST %s without a session: status %d", target, w.Code)
			}
		}
		for user, password := range map[string]string{"ada": "secret of grace", "eve": "secret of eve", "": "", "grace": strings.Repeat("x", 100)} {
			w := b.login(user, password)
			if w.Code != http.StatusUnauthorized {
				t.Errorf("login of %q: status %d", user, w.Code)
			}
			has(t, w.Body.String(), "Wrong name or password.")
		}
		if lines := log.lines("event=dashboard.login_refused"); len(lines) != 4 || strings.Contains(strings.Join(lines, ""), "secret") {
			t.Errorf("the lines in the log: %q", lines)
		}
		before := fields(t, b.get("/login", http.StatusOK), "password")
		if w := b.login("ada", "secret of ada"); w.Code != http.StatusSeeOther {
			t.Fatalf("login: status %d", w.Code)
		}
		has(t, b.get("/", http.StatusOK), "ada", "Log out")
		if w := b.send(http.MethodPost, "/logout", before); w.Code != http.StatusForbidden {
			t.Errorf("a token of before the login: status %d", w.Code)
		}
		time.Sleep(12*time.Hour - time.Minute)
		has(t, b.get("/", http.StatusOK), "ada")
		time.Sleep(2 * time.Minute)
		if w := b.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
			t.Errorf("after twelve hours: status %d", w.Code)
		}
		b.login("grace", "secret of grace")
		logout := fields(t, b.get("/", http.StatusOK), "Log out")
		if w := b.send(http.MethodPost, "/logout", logout); w.Code != http.StatusSeeOther {
			t.Errorf("logout: status %d", w.Code)
		}
		if w := b.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
			t.Errorf("after the logout: status %d", w.Code)
		}
	})
}

// A cookie that somebody else has made is worth nothing.
// OP-07
func TestForgedSession(t *testing.T) {
	t.Parallel()
	b, _ := open(t, empty(t, "ada"))
	b.login("ada", "secret of ada")
	other, _ := open(t, empty(t, "ada"))
	for _, value := range []string{
		b.cookies["waybill_9700"] + "x", "YWRh" + b.cookies["waybill_9700"], strings.ReplaceAll(b.cookies["waybill_9700"], ".", ""), "", ".", "YWRh.zzzzzz.x.",
	} {
		b.cookies = map[string]string{"waybill_9700": value}
		if w := b.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
			t.Errorf("cookie %q: status %d", value, w.Code)
		}
	}
	b.login("ada", "secret of ada")
	other.cookies = b.cookies
	if w := other.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
		t.Errorf("the cookie of another process: status %d", w.Code)
	}
}

// Without users only this machine may look, and no header says that somebody is on it.
// OP-07
func TestWithoutUsersOnlyThisMachineMayLook(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		remote, host, header string
		want                 int
	}{
		{"127.0.0.1:1", "localhost", "", http.StatusOK},
		{"[::1]:1", "[::1]:9700", "", http.StatusOK},
		{"[::ffff:127.0.0.1]:1", "127.0.0.1:9700", "", http.StatusOK},
		{"192.0.2.7:1", "localhost:9700", "", http.StatusForbidden},
		{"192.0.2.7:1", "localhost:9700", "X-Forwarded-For", http.StatusForbidden},
		{"192.0.2.7:1", "localhost:9700", "X-Real-Ip", http.StatusForbidden},
		{"192.0.2.7:1", "localhost:9700", "Forwarded", http.StatusForbidden},
		{"127.0.0.1:1", "localhost:9700", "Forwarded", http.StatusForbidden},
		{"127.0.0.1:1", "localhost:9700", "X-Forwarded-For", http.StatusForbidden},
		{"127.0.0.1:1", "localhost:9700", "X-Forwarded-Host", http.StatusForbidden},
		{"127.0.0.1:1", "localhost:9700", "X-Forwarded-Proto", http.StatusForbidden},
		{"127.0.0.1:1", "localhost:9700", "X-Real-Ip", http.StatusForbidden},
		{"127.0.0.1:1", "localhost:9700", "Via", http.StatusForbidden},
		{"127.0.0.1:1", "rebound.example:9700", "", http.StatusForbidden}, // a name that leads to this machine
		{"127.0.0.1:1", "localhost.example", "", http.StatusForbidden},
		{"", "localhost", "", http.StatusForbidden},
	} {
		b, _ := open(t, empty(t))
		if b.remote, b.host = tc.remote, tc.host; tc.header != "" {
			b.headers[tc.header] = "127.0.0.1"
		}
		b.get("/", tc.want)
	}
	opts := empty(t)
	opts.Open = true
	b, _ := open(t, opts)
	b.remote, b.host = "192.0.2.7:1", "ops.example"
	b.get("/", http.StatusOK)
}

// What changes something needs the token of the session, and comes from the page itself.
// OP-07
func TestForgedRequests(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	b, log := open(t, d.Options())
	before := states(t, d)
	preview := fields(t, b.ask("/messages?state=abandoned", "redrive", nil), `name="sealed"`)
	for name, spoil := range map[string]func(*browser, url.Values){
		"no token":      func(_ *browser, form url.Values) { form.Del("token") },
		"another token": func(_ *browser, form url.Values) { form.Set("token", strings.Repeat("A", 43)) },
		"no cookie":     func(b *browser, _ url.Values) { b.cookies = map[string]string{} },
		"another session": func(b *browser, _ url.Values) {
			other := visitor(t, b.page)
			other.get("/", 200)
			b.cookies = other.cookies
		},
		"another origin": func(b *browser, _ url.Values) { b.headers["Origin"] = "http://evil.example" },
		"another site":   func(b *browser, _ url.Values) { b.headers["Sec-Fetch-Site"] = "cross-site" },
	} {
		for _, target := range []string{"/do", "/preview", "/logout"} {
			c, form := visitor(t, b.page), url.Values{"action": {"redrive"}, "state": {"abandoned"}}
			maps.Copy(c.cookies, b.cookies)
			maps.Copy(form, preview)
			spoil(c, form)
			if w := c.send(http.MethodPost, target, form); w.Code != http.StatusForbidden {
				t.Errorf("%s: POST %s: status %d", name, target, w.Code)
			}
		}
	}
	inURL := b.send(http.MethodPost, "/do?"+preview.Encode(), nil)
	if inURL.Code != http.StatusForbidden {
		t.Errorf("the token in the address: status %d", inURL.Code)
	}
	if w := b.send(http.MethodGet, "/do?"+preview.Encode(), nil); w.Code/100 != 4 {
		t.Errorf("GET /do: status %d", w.Code)
	}
	for _, n := range []int{3 << 20, 16 << 20} {
		huge := url.Values{"token": preview["token"], "body": {strings.Repeat("x", n)}}
		for _, target := range []string{"/preview", "/do", "/logout"} {
			if w := b.send(http.MethodPost, target, huge); w.Code != http.StatusBadRequest {
				t.Errorf("POST %s of %d bytes: status %d", target, n, w.Code)
			} else {
				has(t, w.Body.String(), "The form cannot be read, or has more than 2 MiB.")
			}
		}
	}
	if after := states(t, d); !equal(before, after) || len(log.lines("event=dashboard.action")) != 0 {
		t.Errorf("something has changed: %v", after)
	}
}

// OP-07
func TestHeaders(t *testing.T) {
	t.Parallel()
	b, _ := open(t, empty(t))
	for _, target := range []string{"/", "/nothing", "/static/live.js"} {
		h := b.send(http.MethodGet, target, nil).Header()
		policy := h.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: Content-Security-Policy: %s", target, policy)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", target, h)
		}
	}
	b.cookies = map[string]string{}
	c := b.send(http.MethodGet, "/", nil)
	if cookie := c.Header().Get("Set-Cookie"); !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Lax") {
		t.Errorf("the cookie: %s", cookie)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	store := empty(t).Outboxes[0].Store
	_, err := dashboard.New(dashboard.Options{
		Path: "waybill/", Outboxes: []dashboard.Outbox{{}, {Name: "a", Store: store}, {Name: "a", Store: store}},
		Queues: []dashboard.Queue{{}, {}}, Users: map[string]string{"ada": "plain"},
	})
	for _, want := range []string{"Path:", "Outboxes[0].Name", "Outboxes[0].Store", "Outboxes[2].Name", "Queues[0].Name", "Queues[1].Parked", `Users["ada"]`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "plain") {
		t.Errorf("the error has the password: %v", err)
	}
	if _, err := dashboard.New(dashboard.Options{}); err == nil || waybill.ClassOf(err) == waybill.ClassOutage {
		t.Errorf("nothing to see: %v", err)
	}
}
