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
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// empty returns the options of a dashboard over an empty outbox, with users.
func empty(t *testing.T, users ...string) dashboard.Options {
	t.Helper()
	store, err := memory.New(memory.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	opts := dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: store}}, Users: map[string]dashboard.User{}}
	for _, user := range users {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret of "+user), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		opts.Users[user] = dashboard.User{Password: string(hash), Right: dashboard.RightEdit}
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
		patience.BudgetOf(t)
		opts := empty(t, "ada", "grace")
		opts.Hosts = []string{"ops.example"}
		b, log := open(t, opts)
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
		patience.Pass(t, 12*time.Hour-time.Minute)
		has(t, b.get("/", http.StatusOK), "ada")
		patience.Pass(t, 2*time.Minute)
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

// A cookie with another signature is worth nothing.
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

// Without users a request from this machine needs the token, as one from another machine does: this machine has other
// users and programs that fetch addresses for strangers, and a proxy need not tell that it is one. nginx by its
// defaults asks by HTTP/1.0 for the name that its configuration has.
// OP-07, SE-07
func TestWithoutUsersTheTokenIsTheWayIn(t *testing.T) {
	t.Parallel()
	b, signIn, log := stranger(t, empty(t))
	if len(signIn) < len("/?token=")+26 {
		t.Errorf("the address: %q", signIn)
	}
	_, otherSignIn, _ := stranger(t, empty(t))
	for _, host := range []string{"localhost:9700", "127.0.0.1:9797", "[::1]"} {
		for _, target := range []string{"/", "/messages", "/parked", "/live", "/?token=", "/?token=" + strings.Repeat("A", 26), otherSignIn, "/jobs/x"} {
			b.cookies, b.host = map[string]string{}, host
			w := b.send(http.MethodGet, target, nil)
			if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/login" && to != "/" {
				t.Fatalf("GET %s of %s without the token: status %d, to %q", target, host, w.Code, to)
			}
			if w := b.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
				t.Fatalf("after GET %s of %s: status %d", target, host, w.Code)
			}
		}
	}
	b.host = "localhost:9700"
	form := fields(t, b.get("/login", http.StatusOK), "password")
	for _, target := range []string{"/preview", "/do", "/logout"} {
		if w := b.send(http.MethodPost, target, form); w.Code != http.StatusUnauthorized {
			t.Errorf("POST %s without the token: status %d", target, w.Code)
		}
	}
	form.Set("password", "guess")
	if w := b.send(http.MethodPost, "/login", form); w.Code != http.StatusUnauthorized {
		t.Errorf("a guess: status %d", w.Code)
	}
	if n := len(log.lines("event=dashboard.login_refused")); n != 10 {
		t.Errorf("%d lines of refused logins, want 10", n)
	}
}

// The token is in the address of one request only. It leads to the requested page.
// OP-07
func TestTheTokenDoesNotStayInTheAddress(t *testing.T) {
	t.Parallel()
	opts := empty(t)
	opts.Path = "/waybill"
	b, signIn, log := stranger(t, opts)
	token := strings.TrimPrefix(signIn, "/waybill/?token=")
	for asked, want := range map[string]string{
		"/": "/waybill/", "/messages": "/waybill/messages", "/login": "/waybill/", "//evil.example/x": "/waybill/evil.example/x", "/%5cevil.example": "/waybill/%5Cevil.example",
	} {
		b.cookies = map[string]string{}
		w := b.send(http.MethodGet, "/waybill"+asked+"?token="+token+"&state=failed", nil)
		to, _, _ := strings.Cut(w.Header().Get("Location"), "?")
		if w.Code != http.StatusSeeOther || to != want || strings.Contains(w.Header().Get("Location")+w.Body.String(), token) {
			t.Errorf("GET %s: status %d, to %q", asked, w.Code, w.Header().Get("Location"))
		}
		if w.Header().Get("Referrer-Policy") != "no-referrer" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("GET %s: %v", asked, w.Header())
		}
		has(t, b.get("/waybill/", http.StatusOK), "Overview", "Log out")
	}
	if to := b.send(http.MethodGet, "/waybill/messages?token="+token+"&state=failed", nil).Header().Get("Location"); to != "/waybill/messages?state=failed" {
		t.Errorf("with a session: to %q", to)
	}
	page := b.get("/waybill/", http.StatusOK)
	if strings.Contains(page, token) || len(log.lines(token)) != 0 {
		t.Error("the token is on a page or in the log")
	}
	b.send(http.MethodPost, "/waybill/logout", fields(t, page, "Log out"))
	if w := b.send(http.MethodGet, "/waybill/", nil); w.Code != http.StatusSeeOther {
		t.Errorf("after the logout: status %d", w.Code)
	}
	form := fields(t, b.get("/waybill/login", http.StatusOK), "password")
	form.Set("password", " "+token+"\n")
	if w := b.send(http.MethodPost, "/waybill/login", form); w.Code != http.StatusSeeOther {
		t.Errorf("the token in the form: status %d", w.Code)
	}
	b.get("/waybill/", http.StatusOK)
}

// With users, and when it is open, no token is a way in.
// OP-07
func TestNoTokenBesideAnotherWayIn(t *testing.T) {
	t.Parallel()
	b, signIn, _ := stranger(t, empty(t, "ada"))
	if signIn != "/" {
		t.Errorf("with users: the address %q", signIn)
	}
	if w := b.send(http.MethodGet, "/?token=", nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
		t.Errorf("an empty token: status %d, to %q", w.Code, w.Header().Get("Location"))
	}
	opts := empty(t)
	opts.Open = true
	b, signIn, _ = stranger(t, opts)
	if b.remote = "192.0.2.7:1"; signIn != "/" {
		t.Errorf("open: the address %q", signIn)
	}
	b.get("/", http.StatusOK)
}

// A page of another site cannot reach the dashboard by a name of its own that leads to this machine, also where
// everybody is let in.
// OP-07
func TestHosts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		hosts, host string
		want        int
	}{
		{"", "localhost", http.StatusOK},
		{"", "LOCALHOST:9700", http.StatusOK},
		{"", "127.0.0.1:9700", http.StatusOK},
		{"", "192.0.2.7", http.StatusOK},
		{"", "[::1]:9700", http.StatusOK},
		{"", "rebound.example:9700", http.StatusForbidden},
		{"", "localhost.example", http.StatusForbidden},
		{"", "127.0.0.1.example", http.StatusForbidden},
		{"", "2130706433", http.StatusForbidden},
		{"", "127.1", http.StatusForbidden},
		{"", "", http.StatusForbidden},
		{"ops.example", "ops.example", http.StatusOK},
		{"ops.example", "Ops.Example.:8443", http.StatusOK},
		{"ops.example", "sub.ops.example", http.StatusForbidden},
		{"ops.example", "localhost", http.StatusForbidden},
		{"ops.example", "127.0.0.1", http.StatusForbidden},
		{"ops.example:8443", "ops.example:8443", http.StatusOK},
		{"ops.example:8443", "ops.example", http.StatusForbidden},
		{"ops.example:8443", "ops.example:8444", http.StatusForbidden},
		{"other.example,[::1]:9700", "[::1]:9700", http.StatusOK},
		{"*", "any.example", http.StatusOK},
	} {
		for way, opts := range map[string]dashboard.Options{"open": empty(t), "users": empty(t, "ada"), "token": empty(t)} {
			opts.Open = way == "open"
			if tc.hosts != "" {
				opts.Hosts = strings.Split(tc.hosts, ",")
			}
			d, err := dashboard.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/login", http.NoBody)
			r.Host = tc.host
			w := httptest.NewRecorder()
			if d.ServeHTTP(w, r); w.Code != tc.want {
				t.Errorf("%s: host %q of %q: status %d, want %d", way, tc.host, tc.hosts, w.Code, tc.want)
			}
			if tc.want == http.StatusForbidden {
				has(t, w.Body.String(), "Options.Hosts")
				if len(w.Result().Cookies()) > 0 {
					t.Errorf("%s: host %q: a refused request gets a cookie", way, tc.host)
				}
			}
		}
	}
}

// The server lists no files.
// OP-07
func TestStaticFilesAreNotListed(t *testing.T) {
	t.Parallel()
	b, _ := open(t, empty(t))
	for _, target := range []string{"/static/", "/static", "/static/.", "/static/nothing", "/static/../templates/layout.html"} {
		if w := b.send(http.MethodGet, target, nil); w.Code != http.StatusNotFound && w.Code/100 != 3 || strings.Contains(w.Body.String(), "style.css\">style") {
			t.Errorf("GET %s: status %d: %s", target, w.Code, w.Body)
		}
	}
	b.get("/static/style.css", http.StatusOK)
}

// A request that changes something needs the token of the session, and comes from the page itself.
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
		Queues: []dashboard.Queue{{}, {}}, Users: map[string]dashboard.User{"ada": {Password: "plain"}, "eve": {Password: "$2y$", Right: "all"}}, Right: "every",
		Open: true, Hosts: []string{"https://ops.example"}, Proxy: dashboard.Proxy{UserHeader: "X-Forwarded-User", From: []string{"proxy.example"}},
	})
	for _, want := range []string{"Path:", "Outboxes[0].Name", "Outboxes[0].Store", "Outboxes[2].Name", "Queues[0].Name", "Queues[1].Parked", `Users["ada"].Password`, `Users["eve"].Right`, "Right:", "Open: is set, and Users", "Open: is set, and so is Proxy", "Proxy.From[0]", "Hosts[0]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "plain") {
		t.Errorf("the error has the password: %v", err)
	}
	opts := empty(t)
	opts.Proxy.UserHeader = "X-Forwarded-User"
	if _, err := dashboard.New(opts); err == nil || !strings.Contains(err.Error(), "Proxy.UserHeader: is set without Proxy.From") {
		t.Errorf("a header that everybody can send: %v", err)
	}
	if _, err := dashboard.New(dashboard.Options{}); err == nil || waybill.ClassOf(err) == waybill.ClassOutage {
		t.Errorf("nothing to see: %v", err)
	}
}
