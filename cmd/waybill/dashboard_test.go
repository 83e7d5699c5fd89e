package main

import (
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"strings"
	"testing"

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
