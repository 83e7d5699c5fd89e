package main

import (
	"fmt"
	"html"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
)

// OP-07: the daemon shows the dashboard if the settings ask for it, over its stores, relays and subscriptions, and ends
// although a browser looks.
func TestDashboard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conf := b.base() + "relays:\n  a: {}\nsubscriptions:\n- queue: q\n- queue: mails\nlog: {level: error}\ndashboard: {enabled: true, read_only: true}\nhttp:\n  listen: 127.0.0.1:0\n"
	r := start(t, b.app(), "relay", "--config", write(t, conf))
	// The address in the log is the way in, also if only errors are logged.
	var url []string
	patience.Until(t, "the address is logged", func() bool {
		url = regexp.MustCompile(`event=daemon\.dashboard url="?((http://127\.0\.0\.1:\d+)/dashboard/\?token=\w+)`).FindStringSubmatch(r.log.String())
		return url != nil
	})
	at := url[2]
	if code, text := get(t, at+"/dashboard/"); code != 200 || !strings.Contains(text, "Log in") {
		t.Errorf("without the token: %d\n%s", code, text)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	viewer := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	if code, text := getBy(t, viewer, url[1]); code != 200 || !strings.Contains(text, "Overview") {
		t.Errorf("with the token: %d\n%s", code, text)
	}
	patience.Until(t, "ready", func() bool { code, _ := get(t, at+"/readyz"); return code == 200 })
	for path, want := range map[string]string{"": "Overview", "/": "data-label=\"parked\">0</td>", "/messages": "No message matches", "/parked?queue=q": "Parked messages of q"} {
		if code, text := getBy(t, viewer, at+"/dashboard"+path); code != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d\n%s", path, code, text)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"/dashboard/live", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := viewer.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if _, err := stream.Body.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.end(t, cli.ExitOK)
}

// SIGHUP takes over the users of the dashboard, and their rights, and a password is taken over when its file changes. A
// session that is open loses its right, or ends, with them: an operator shuts a user out without a restart.
//
// OP-07, SE-07.
func TestUsersOfARunningDaemon(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	set := func(name, password string) {
		t.Helper()
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		rewrite(t, filepath.Join(dir, name), string(hash))
	}
	settings := func(rights ...string) string {
		var text strings.Builder
		text.WriteString(strings.Replace(b.base(), "kind: memory", "kind: stuck", 1) + "relays:\n  a: {}\nhttp:\n  listen: 127.0.0.1:0\ndashboard:\n  enabled: true\n  users:\n")
		for _, r := range rights {
			name, right, _ := strings.Cut(r, " ")
			fmt.Fprintf(&text, "    %s: {right: %s, password: {file: %s}}\n", name, right, filepath.Join(dir, name))
		}
		return text.String()
	}
	set("ada", "first of ada")
	set("grace", "of grace")
	conf := write(t, settings("ada act", "grace act"))
	p := process(t, "relay", "--config", conf)
	defer func() {
		if t.Failed() {
			t.Log(p.Log.String())
		}
	}()
	at := address(t, &p.Log) + "/dashboard"
	token := regexp.MustCompile(`name="token" value="([^"]*)"`)
	post := func(c *http.Client, path string, form url.Values) int {
		t.Helper()
		code, page := getBy(t, c, at+path)
		found := token.FindStringSubmatch(page)
		if found == nil {
			t.Fatalf("%s has no form: %d\n%s", path, code, page)
		}
		form.Set("token", html.UnescapeString(found[1]))
		target := path
		if path != "/login" {
			target = "/preview"
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+target, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		a, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		return a.StatusCode
	}
	login := func(name, password string) (*http.Client, int) {
		t.Helper()
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
		return c, post(c, "/login", url.Values{"user": {name}, "password": {password}})
	}
	pause := func(c *http.Client) int { return post(c, "/", url.Values{"action": {"pause"}, "route": {"default"}}) }
	in := func(c *http.Client) bool { _, page := getBy(t, c, at+"/"); return strings.Contains(page, "Overview") }
	ada, _ := login("ada", "first of ada")
	grace, _ := login("grace", "of grace")
	for name, c := range map[string]*http.Client{"ada": ada, "grace": grace} {
		if code := pause(c); !in(c) || code != http.StatusOK {
			t.Fatalf("%s may not act: %d", name, code)
		}
	}
	reload := func(rights ...string) {
		t.Helper()
		p.Log.Take()
		rewrite(t, conf, settings(rights...))
		p.Signal(syscall.SIGHUP)
		patience.Until(t, "the settings are read again", func() bool { return strings.Contains(p.Log.String(), "event=daemon.reload\n") })
	}
	reload("ada look", "grace act")
	if code := pause(ada); code != http.StatusForbidden || !in(ada) {
		t.Errorf("the session of a user who may no longer act: %d", code)
	}
	if code := pause(grace); code != http.StatusOK {
		t.Errorf("the session of another one: %d", code)
	}
	reload("ada look")
	if in(grace) {
		t.Error("the session of a user who is gone goes on")
	}
	if _, code := login("grace", "of grace"); code != http.StatusUnauthorized {
		t.Errorf("a user who is gone logs in: %d", code)
	}
	if !in(ada) {
		t.Error("the session of a user whose line is as it was has ended")
	}
	set("ada", "second of ada")
	patience.Until(t, "the session ends with its password", func() bool { return !in(ada) })
	if _, code := login("ada", "first of ada"); code != http.StatusUnauthorized {
		t.Errorf("the old password: %d", code)
	}
	if c, _ := login("ada", "second of ada"); !in(c) {
		t.Error("the new password lets nobody in")
	}
	rewrite(t, filepath.Join(dir, "ada"), "plain")
	patience.Until(t, "a password that is none is told", func() bool { return strings.Contains(p.Log.String(), "event=daemon.reload_refused") })
	if c, _ := login("ada", "second of ada"); !in(c) || strings.Contains(p.Log.String(), "plain") {
		t.Error("the old password does not stay, or the log has the new one")
	}
	p.Signal(syscall.SIGTERM)
	ended(t, p)
}
