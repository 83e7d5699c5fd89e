package dashboard_test

import (
	"context"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/patience"
)

// journal keeps the lines of a log.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) lines(with string) (out []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.text.String()) {
		if strings.Contains(line, with) {
			out = append(out, line)
		}
	}
	return out
}

// newShop returns a shop whose messages have got as far as they get, and whose relay has ended.
func newShop(t *testing.T, more ...waybill.Message) *demo.Demo {
	t.Helper()
	d, err := demo.New(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := d.Stage(t.Context(), append(demo.Troubles(), more...)...); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	patience.Moving(t, "the shop is at rest", func() (at string, done bool) {
		l, err := d.Store.List(t.Context(), admin.Filter{Routes: []string{waybill.DefaultRoute}}, admin.PageRequest{})
		if err != nil {
			t.Fatal(err)
		}
		given, failed, other := 0, 0, 0
		for i := range l.Records {
			switch s := &l.Records[i]; {
			case s.State == core.StateAbandoned:
				given++
			case s.State == core.StateFailed:
				failed++
			case s.DueIn == 0 && s.Envelope.Key != demo.BlockedKey:
				other++
			}
		}
		depth, err := d.Bus.ParkedDepth(t.Context(), demo.Queue)
		at = fmt.Sprintf("given up %d, failed %d, other %d, parked %d, queue %+v", given, failed, other, depth, d.Bus.Depth(demo.Queue))
		return at, err == nil && given == 2 && failed == 1 && other == 0 && depth > 0 && d.Bus.Depth(demo.Queue).Ready == 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return d
}

// browser is a viewer of a dashboard.
type browser struct {
	t            *testing.T
	page         http.Handler
	host, remote string
	headers      map[string]string
	cookies      map[string]string
}

// open opens a dashboard. The log goes to the journal.
func open(t *testing.T, opts dashboard.Options) (*browser, *journal) {
	t.Helper()
	log := &journal{}
	opts.Logger = slog.New(slog.NewTextHandler(log, nil))
	d, err := dashboard.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return visitor(t, d), log
}

func visitor(t *testing.T, page http.Handler) *browser {
	t.Helper()
	b := &browser{t: t, page: page, host: "localhost:9700", remote: "127.0.0.1:40000", headers: map[string]string{}, cookies: map[string]string{}}
	if url := page.(*dashboard.Dashboard).SignInURL(""); strings.Contains(url, "token=") {
		b.send(http.MethodGet, url, nil)
	}
	return b
}

// stranger is a viewer without a session.
func stranger(t *testing.T, opts dashboard.Options) (b *browser, signIn string, log *journal) {
	t.Helper()
	b, log = open(t, opts)
	b.cookies = map[string]string{}
	return b, b.page.(*dashboard.Dashboard).SignInURL(""), log
}

// unhurried lets the dashboard search to the end.
func (b *browser) unhurried() { b.page.(*dashboard.Dashboard).Unhurried() }

func (b *browser) request(method, target string, form url.Values) *http.Request {
	r := httptest.NewRequestWithContext(b.t.Context(), method, "http://"+b.host+target, strings.NewReader(form.Encode()))
	r.RemoteAddr = b.remote
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+b.host)
	}
	for name, value := range b.headers {
		r.Header.Set(name, value)
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	return r
}

func (b *browser) send(method, target string, form url.Values) *httptest.ResponseRecorder {
	b.t.Helper()
	return serve(b, b.request(method, target, form))
}

func serve(b *browser, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.page.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		b.cookies[c.Name] = c.Value
	}
	return w
}

// get returns a page, which must come with status.
func (b *browser) get(target string, status int) string {
	b.t.Helper()
	w := b.send(http.MethodGet, target, nil)
	if w.Code != status {
		b.t.Fatalf("GET %s: status %d, want %d: %s", target, w.Code, status, text(w.Body.String()))
	}
	return w.Body.String()
}

var (
	hidden = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`)
	tags   = regexp.MustCompile(`(?s)<head>.*</head>|<[^>]*>|\s+`)
)

// text returns what one reads on a page.
func text(page string) string {
	return html.UnescapeString(strings.Join(strings.Fields(tags.ReplaceAllString(page, " ")), " "))
}

func has(t *testing.T, page string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := text(page); !strings.Contains(got, w) {
			t.Errorf("the page does not say %q: %s", w, got)
		}
	}
}

// fields returns the hidden fields of the form that contains a text.
func fields(t *testing.T, page, with string) url.Values {
	t.Helper()
	for _, form := range strings.Split(page, "<form")[1:] {
		form, _, _ = strings.Cut(form, "</form>")
		if strings.Contains(form, with) {
			out := url.Values{}
			for _, m := range hidden.FindAllStringSubmatch(form, -1) {
				out.Set(m[1], html.UnescapeString(m[2]))
			}
			return out
		}
	}
	t.Fatalf("no form contains %q: %s", with, text(page))
	return nil
}

// ask presses the button of an action in a form of a page, and returns the preview.
func (b *browser) ask(target, action string, more url.Values) (preview string) {
	b.t.Helper()
	form := fields(b.t, b.get(target, http.StatusOK), `value="`+action+`"`)
	form.Set("action", action)
	for name := range more {
		form.Set(name, more.Get(name))
	}
	w := b.send(http.MethodPost, "/preview", form)
	if w.Code != http.StatusOK {
		b.t.Fatalf("preview of %s: status %d: %s", action, w.Code, text(w.Body.String()))
	}
	return w.Body.String()
}

// confirm does what a preview shows, and returns the page of the result.
func (b *browser) confirm(preview string) string {
	b.t.Helper()
	w := b.send(http.MethodPost, "/do", fields(b.t, preview, `name="sealed"`))
	if w.Code != http.StatusSeeOther {
		b.t.Fatalf("do: status %d: %s", w.Code, text(w.Body.String()))
	}
	var page string
	patience.Until(b.t, "the action has ended", func() bool {
		result := b.send(http.MethodGet, w.Header().Get("Location"), nil)
		page = result.Body.String()
		return result.Code == http.StatusOK && result.Header().Get("Refresh") == ""
	})
	return page
}
