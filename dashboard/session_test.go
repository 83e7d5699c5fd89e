package dashboard_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/patience"
)

// guess tries a password, and returns for how long the next one has to wait; 0 = the password was compared.
func (b *browser) guess(user, password string) time.Duration {
	b.t.Helper()
	w := b.login(user, password)
	switch w.Code {
	case http.StatusUnauthorized, http.StatusSeeOther:
		return 0
	case http.StatusTooManyRequests:
		seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if err != nil || seconds < 1 {
			b.t.Fatalf("Retry-After: %q", w.Header().Get("Retry-After"))
		}
		has(b.t, w.Body.String(), "Too many attempts: try again in")
		return time.Duration(seconds) * time.Second
	}
	b.t.Fatalf("login: status %d: %s", w.Code, text(w.Body.String()))
	return 0
}

// Each wrong password doubles the wait for the next one, and a right one does not pass before its time. Others are not
// slowed down: neither another user at this address, nor the same user at another one.
// OP-07, SE-07
func TestGuessesAreSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		b, log := open(t, empty(t, "ada", "grace"))
		b.remote = "192.0.2.7:1000"
		began, compared := time.Now(), 0
		for time.Since(began) < 24*time.Hour && compared < 500 {
			if wait := b.guess("ada", "wrong"); wait == 0 {
				compared++
			} else if b.guess("ada", "secret of ada") == 0 {
				t.Fatal("a right password passes before its time")
			} else {
				patience.Pass(t, wait)
			}
		}
		if compared > 3+10+24*4+1 || compared < 24*3 {
			t.Errorf("%d guesses in a day", compared)
		}
		if n := len(log.lines("event=dashboard.login_refused")); n != compared {
			t.Errorf("%d lines of refused logins, want %d", n, compared)
		}
		b.guess("ada", "wrong")
		other := visitor(t, b.page)
		other.remote = "192.0.2.8:1000"
		if w := other.login("ada", "secret of ada"); w.Code != http.StatusSeeOther {
			t.Errorf("ada at another address: status %d", w.Code)
		}
		patience.Pass(t, 16*time.Minute) // of the address
		if w := b.login("ada", "secret of ada"); w.Code != http.StatusSeeOther {
			t.Errorf("ada, after the wait: status %d", w.Code)
		}
		for range 4 {
			other.guess("ada", "wrong")
			other.guess("ada", "wrong")
			if w := other.login("ada", "secret of ada"); w.Code != http.StatusSeeOther {
				t.Errorf("the count goes on after a right password: status %d", w.Code)
			}
		}
	})
}

// A client that tries one password with many names has to wait, too, and the addresses of one network count as one.
// OP-07
func TestGuessesOfManyNamesAreSlow(t *testing.T) {
	t.Parallel()
	for name, remote := range map[string]string{"4": "192.0.2.7:%d", "6": "[2001:db8:1:2::%d]:1"} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t)
			b, _ := open(t, empty(t, "ada"))
			compared := 0
			for i := range 200 {
				b.remote = fmt.Sprintf(remote, i+1)
				if b.guess(fmt.Sprint("user", i), "123456") == 0 {
					compared++
				}
			}
			if compared != 20 {
				t.Errorf("%s: %d guesses at once, want 20", name, compared)
			}
		})
	}
}

// A proxy's clients are counted by the address that the proxy names; no other client can name one.
// OP-07
func TestGuessesBehindAProxy(t *testing.T) {
	t.Parallel()
	opts := empty(t, "ada")
	opts.Proxy.From = []string{"10.0.0.7"}
	b, _ := open(t, opts)
	for remote, want := range map[string]int{"10.0.0.7:1": 30, "10.0.0.8:1": 3} {
		compared := 0
		for i := range 30 {
			b.remote, b.headers["X-Forwarded-For"] = remote, fmt.Sprintf("1.2.3.4, 192.0.2.%d", i)
			if b.guess("ada", "wrong") == 0 {
				compared++
			}
		}
		if compared != want {
			t.Errorf("from %s: %d guesses at once, want %d", remote, compared, want)
		}
	}
}

// The counts have a bound, at which an old one goes.
// OP-07
func TestCountsOfGuessesAreBounded(t *testing.T) {
	t.Parallel()
	b, _ := open(t, empty(t, "ada"))
	d := b.page.(*dashboard.Dashboard)
	for i := range dashboard.MaxBraked + 100 {
		d.Guess("ada", fmt.Sprint("address ", i))
	}
	if n := d.Braked(); n != dashboard.MaxBraked {
		t.Errorf("%d counts, want %d", n, dashboard.MaxBraked)
	}
}

// A few passwords are compared at a time, a few wait, and more are refused at once.
// OP-07
func TestFewPasswordsAreComparedAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		first, _ := open(t, empty(t, "ada"))
		release := first.page.(*dashboard.Dashboard).Compare()
		login := func(i int) *httptest.ResponseRecorder {
			b := visitor(t, first.page)
			b.remote = fmt.Sprintf("192.0.2.%d:1", i)
			return b.login("ada", "secret of ada")
		}
		var wg sync.WaitGroup
		for i := range dashboard.MaxQueued {
			wg.Go(func() {
				if w := login(i); w.Code != http.StatusSeeOther {
					t.Errorf("one in the queue: status %d", w.Code)
				}
			})
		}
		synctest.Wait()
		if w := login(100); w.Code != http.StatusTooManyRequests {
			t.Errorf("one too many: status %d", w.Code)
		}
		release()
		wg.Wait()
		if w := login(100); w.Code != http.StatusSeeOther {
			t.Errorf("when the queue is empty: status %d", w.Code)
		}
	})
}

// A logout ends the session for every copy of its cookie. Other sessions of the user go on.
// OP-07
func TestLogoutEndsEveryCopy(t *testing.T) {
	t.Parallel()
	b, log := open(t, empty(t, "ada"))
	b.login("ada", "secret of ada")
	other := visitor(t, b.page)
	other.login("ada", "secret of ada")
	copied := visitor(t, b.page)
	maps.Copy(copied.cookies, b.cookies)
	copied.get("/", http.StatusOK)
	b.send(http.MethodPost, "/logout", fields(t, b.get("/", http.StatusOK), "Log out"))
	for _, target := range []string{"/", "/messages", "/live"} {
		c := visitor(t, b.page)
		maps.Copy(c.cookies, copied.cookies)
		if w := c.send(http.MethodGet, target, nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
			t.Errorf("a copy of the cookie, GET %s: status %d", target, w.Code)
		}
	}
	other.get("/", http.StatusOK)
	old := visitor(t, b.page)
	maps.Copy(old.cookies, other.cookies)
	other.login("ada", "secret of ada")
	if w := old.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
		t.Errorf("the session before another login: status %d", w.Code)
	}
	for event, n := range map[string]int{"dashboard.login": 3, "dashboard.logout": 1} {
		lines := log.lines("event=" + event + " ")
		if len(lines) != n || !strings.Contains(lines[0], "user=ada via=password remote=127.0.0.1:40000") {
			t.Errorf("%s: %q", event, lines)
		}
	}
}

// A logout ends the session for a page that is open.
// OP-07
func TestLogoutEndsStreams(t *testing.T) {
	t.Parallel()
	first, signIn, _ := stranger(t, empty(t))
	server := httptest.NewServer(first.page)
	defer server.Close()
	defer server.CloseClientConnections()
	first.host = strings.TrimPrefix(server.URL, "http://")
	first.send(http.MethodGet, signIn, nil)
	r := first.request(http.MethodGet, "/live", nil)
	r.RequestURI = ""
	stream, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	lines := bufio.NewReader(stream.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	first.send(http.MethodPost, "/logout", fields(t, first.get("/", http.StatusOK), "Log out"))
	told := 0
	for err == nil {
		var line string
		if line, err = lines.ReadString('\n'); strings.HasPrefix(line, "data: ") {
			told++
		}
	}
	if told > 2 {
		t.Errorf("the stream of an ended session has told %d times", told)
	}
}

// So many sessions can be ended that the memory of it is full: then all sessions end, and none comes back.
// OP-07
func TestEndedSessionsDoNotComeBack(t *testing.T) {
	t.Parallel()
	b, signIn, _ := stranger(t, empty(t))
	b.send(http.MethodGet, signIn, nil)
	ended := maps.Clone(b.cookies)
	for range dashboard.MaxEnded + 1 {
		b.send(http.MethodGet, signIn, nil)
		b.page.(*dashboard.Dashboard).EndSession(b.cookies["waybill_9700"])
		b.cookies = map[string]string{}
	}
	first := visitor(t, b.page)
	first.cookies = ended
	if w := first.send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther {
		t.Errorf("a session of before: status %d", w.Code)
	}
	b.send(http.MethodGet, signIn, nil)
	b.get("/", http.StatusOK)
}

// A refused login is in the log.
// OP-07
func TestRefusedActionsAreInTheLog(t *testing.T) {
	t.Parallel()
	first, log := open(t, byProxy(empty(t)))
	b := as(t, first.page, "ada")
	token := b.token()
	for _, form := range []url.Values{{"token": {token}, "action": {"redrive"}, "state": {"failed"}}, {"action": {"purge"}}} {
		if w := b.send(http.MethodPost, "/preview", form); w.Code != http.StatusForbidden {
			t.Errorf("status %d", w.Code)
		}
	}
	lines := log.lines("event=dashboard.refused")
	if len(lines) != 2 || !strings.Contains(lines[0], "user=ada via=proxy remote=10.0.0.7:4000") || !strings.Contains(lines[0], "path=/preview action=redrive status=403") {
		t.Errorf("the lines: %q", lines)
	}
}

// By HTTPS the cookie is for HTTPS only, and its name lets no other host set it. A proxy that ends TLS has to be named.
// OP-07
func TestCookiesOfHTTPS(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, remote string
		tls, proxy   bool
		want         string
	}{
		"tls":              {tls: true, want: "__Host-waybill_9700=;Path=/;Secure"},
		"tls below":        {path: "/ops", tls: true, want: "__Host-waybill_9700_2f6f7073=;Path=/;Secure"},
		"behind a proxy":   {proxy: true, remote: "10.0.0.7:1", want: "__Host-waybill_9700=;Path=/;Secure"},
		"beside the proxy": {proxy: true, remote: "10.0.0.8:1", want: "waybill_9700=;Path=/"},
		"plain":            {path: "/ops", want: "waybill_9700=;Path=/ops/"},
	} {
		opts := empty(t)
		opts.Path = tc.path
		if tc.proxy {
			opts.Proxy = dashboard.Proxy{From: []string{"10.0.0.7"}, TLS: true}
		}
		b, signIn, _ := stranger(t, opts)
		send := func(target string) *httptest.ResponseRecorder {
			r := b.request(http.MethodGet, target, nil)
			if tc.tls {
				r.TLS = &tls.ConnectionState{}
			}
			if tc.remote != "" {
				r.RemoteAddr = tc.remote
			}
			return serve(b, r)
		}
		set := send(signIn).Header().Values("Set-Cookie")
		if len(set) == 0 {
			t.Fatalf("%s: no cookie", name)
		}
		c, err := http.ParseSetCookie(set[len(set)-1])
		if err != nil {
			t.Fatal(err)
		}
		got := c.Name + "=;Path=" + c.Path
		if c.Secure {
			got += ";Secure"
		}
		if got != tc.want || !c.HttpOnly || c.Domain != "" {
			t.Errorf("%s: %s, want %s", name, set, tc.want)
		}
		if w := send(tc.path + "/"); w.Code != http.StatusOK {
			t.Errorf("%s: the cookie does not come back: status %d", name, w.Code)
		}
	}
}

// Users can be replaced while the page runs. A session ends when its user is gone or has another password. The way in
// stays.
// SE-07.
func TestUsersAreReplaced(t *testing.T) {
	t.Parallel()
	opts := empty(t, "ada", "grace", "edsger")
	b, _ := open(t, opts)
	in := map[string]*browser{}
	for name := range opts.Users {
		in[name] = visitor(t, b.page)
		in[name].login(name, "secret of "+name)
		in[name].get("/", http.StatusOK)
	}
	page := b.page.(*dashboard.Dashboard)
	fresh := maps.Clone(opts.Users)
	delete(fresh, "grace")
	fresh["edsger"] = opts.Users["grace"] // her password
	fresh["barbara"] = opts.Users["ada"]
	if err := page.SetUsers(fresh); err != nil {
		t.Fatal(err)
	}
	in["ada"].get("/", http.StatusOK)
	for _, name := range []string{"grace", "edsger"} {
		if w := in[name].send(http.MethodGet, "/", nil); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
			t.Errorf("%s: status %d", name, w.Code)
		}
	}
	newcomer := visitor(t, b.page)
	newcomer.login("barbara", "secret of ada")
	newcomer.get("/", http.StatusOK)
	for problem, users := range map[string]map[string]dashboard.User{
		"no bcrypt hash": {"ada": {Password: "plain"}}, "no right": {"ada": {Password: fresh["ada"].Password, Right: "root"}}, "restart": {},
	} {
		if err := page.SetUsers(users); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", problem, err)
		}
	}
	in["ada"].get("/", http.StatusOK)
}
