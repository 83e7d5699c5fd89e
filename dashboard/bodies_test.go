package dashboard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
)

// page shows a message with a body.
func page(t *testing.T, d *demo.Demo, body []byte, change func(*dashboard.Options)) string {
	t.Helper()
	opts := d.Options()
	opts.Outboxes[0].Store = &shown{OutboxStore: d.Store, inspect: func(s *admin.Stored) { s.Envelope.Body = body }}
	if change != nil {
		change(&opts)
	}
	b, _ := open(t, opts)
	poison := find(t, d, admin.Filter{Topics: []string{demo.TopicPoison}})
	return b.get(messageURL(&poison), http.StatusOK)
}

// OP-07
func TestBodies(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	secret := []byte(`{"card":"4111"}`)
	if got := text(page(t, d, secret, func(o *dashboard.Options) { o.ShowBodies = false })); strings.Contains(got, "4111") || !strings.Contains(got, "15 bytes of application/json") {
		t.Errorf("a body is shown although that is not allowed: %s", got)
	}
	hide := func(e *waybill.Envelope) []byte { return bytes.ReplaceAll(e.Body, []byte("4111"), []byte("****")) }
	if got := text(page(t, d, secret, func(o *dashboard.Options) { o.Mask = hide })); strings.Contains(got, "4111") || !strings.Contains(got, `"card": "****"`) {
		t.Errorf("the mask is not used: %s", got)
	}
	has(t, page(t, d, nil, nil), "The body is empty.")
	has(t, page(t, d, []byte("plain text"), nil), "plain text")
	has(t, page(t, d, []byte("\x00\x01PNG\xff"), nil), "000000 00 01 50 4e 47 ff", "..PNG.")
}

// A page stays small with a body of any size and content.
// OP-07
func TestHugeBodies(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	text16 := strings.Repeat("é", 8<<20)
	deepest := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	numbers, err := json.Marshal(make([]int, 8<<20))
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"text": text16, "text cut within a letter": "x" + text16, "JSON": string(numbers), "bytes": strings.Repeat("\x00", 16<<20), "deep JSON": deepest,
		"deep JSON within text":           `"` + deepest + `"`,
		"JSON with more blanks than text": strings.Repeat("[", 99) + strings.Repeat("1,", 80_000) + "1" + strings.Repeat("]", 99),
	} {
		got := page(t, d, []byte(body), nil)
		if len(got) > 600<<10 {
			t.Errorf("%s: the page has %d bytes", name, len(got))
		}
		if strings.HasPrefix(name, "text") && !strings.Contains(got, "ééé") {
			t.Errorf("%s: is not shown as text", name)
		}
	}
	has(t, page(t, d, []byte(text16), nil), "The first 262 144 of 16 777 216 bytes.")
	opts := d.Options()
	opts.Queues = []dashboard.Queue{{Name: demo.Queue, Parked: hugeQueue{body: []byte(text16)}}}
	b, _ := open(t, opts)
	for _, target := range []string{"/parked", "/parked/message?id=1"} {
		got := b.get(target, http.StatusOK)
		if len(got) > 600<<10 || strings.Contains(got, "<textarea") {
			t.Errorf("%s: the page has %d bytes, or a field with the cut body", target, len(got))
		}
	}
}

// hugeQueue has one parked message with a body.
type hugeQueue struct {
	hostileQueue
	body []byte
}

func (q hugeQueue) InspectParked(context.Context, string, admin.ParkedFilter) (admin.Parked, error) {
	p := hostileParked()
	p.Envelope.Body = q.body
	return p, nil
}

// hostileQueue answers with hostile texts.
type hostileQueue struct{ admin.ParkedQueue }

func hostileParked() admin.Parked {
	return admin.Parked{Envelope: hostileEnvelope(), Position: 1, Queue: hostile, Reason: hostile, Error: hostile, Attempts: 1, At: time.Now()}
}

func (hostileQueue) ParkedDepth(context.Context, string) (int, error) { return 1, nil }

func (hostileQueue) ListParked(context.Context, string, admin.ParkedFilter, int) ([]admin.Parked, error) {
	return []admin.Parked{hostileParked()}, nil
}

func (hostileQueue) InspectParked(context.Context, string, admin.ParkedFilter) (admin.Parked, error) {
	return hostileParked(), nil
}

// hostileName is a name that an attacker could give; forms send no zero byte.
var hostileName = strings.TrimSuffix(hostile, "\x00")

const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(2)><a href="javascript:alert(3)">{{.}}</textarea>` + "\x1b[31m\u202e</pre>\x00"

// hostileEnvelope has hostile text wherever an envelope can have text.
func hostileEnvelope() waybill.Envelope {
	return waybill.Envelope{
		ID: hostile, Topic: hostile, Type: hostile, Source: hostile, Subject: hostile, Key: hostile, Tenant: hostile, ContentType: hostile,
		CorrelationID: hostile, CausationID: hostile, RunID: hostile, Lineage: []string{hostile}, TraceParent: hostile, Time: time.Now(),
		Headers: map[string]string{hostile: hostile}, Body: []byte(hostile),
	}
}

// harmless fails if a page has a tag that is not the dashboard's.
func harmless(t *testing.T, target, page string) {
	t.Helper()
	for _, bad := range []string{"<img", "<a href=\"javascript", "alert(1)</script>", "\x00"} {
		if strings.Contains(page, bad) {
			t.Errorf("%s: the page has %q", target, bad)
		}
	}
	if n := strings.Count(page, "<script"); n != 1 {
		t.Errorf("%s: the page has %d scripts", target, n)
	}
	for _, attribute := range []string{" onerror=alert(2)>", " href=\"javascript:", " style="} {
		if strings.Contains(page, attribute) {
			t.Errorf("%s: the page has the attribute %q", target, attribute)
		}
	}
}

// OP-07
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	d := newShop(t)
	opts := d.Options()
	opts.Title = hostile
	evil := &hostileStore{&shown{OutboxStore: d.Store}}
	opts.Outboxes = append(opts.Outboxes, dashboard.Outbox{Name: hostileName, Store: evil})
	opts.Queues = append(opts.Queues, dashboard.Queue{Name: hostileName, Parked: hostileQueue{}})
	b, _ := open(t, opts)
	for _, target := range []string{
		"/", "/messages?", "/message?id=1&route=x", "/keys?route=" + url.QueryEscape(hostile), "/keys?", "/schedule?", "/parked?", "/parked/message?position=1", "/parked?error=" + url.QueryEscape(hostile),
		"/messages?topic=" + url.QueryEscape(hostile) + "&key=" + url.QueryEscape(hostile),
	} {
		if strings.Contains(target, "?") {
			target += "&outbox=" + url.QueryEscape(hostileName) + "&queue=" + url.QueryEscape(hostileName)
		}
		page := b.get(target, http.StatusOK)
		harmless(t, target, page)
		if !strings.Contains(page, "alert(1)") {
			t.Errorf("%s: the text is missing: %s", target, text(page))
		}
	}
	for _, target := range []string{"/messages?state=" + url.QueryEscape(hostile), "/messages?since=" + url.QueryEscape(hostile), "/messages?outbox=" + url.QueryEscape(hostile+"x"), "/parked?queue=" + url.QueryEscape(hostile+"x")} {
		w := b.send(http.MethodGet, target, nil)
		harmless(t, target, w.Body.String())
		if w.Code/100 != 4 {
			t.Errorf("%s: status %d", target, w.Code)
		}
	}
	form := fields(t, b.get("/keys?outbox="+url.QueryEscape(hostileName), http.StatusOK), `value="skip"`)
	form.Set("action", "skip")
	preview := b.send(http.MethodPost, "/preview", form)
	harmless(t, "preview", preview.Body.String())
	has(t, preview.Body.String(), "given up, for good")
	harmless(t, "result", b.confirm(preview.Body.String()))
}

// hostileStore answers with hostile texts.
type hostileStore struct{ *shown }

func hostileRecord() admin.Stored {
	return admin.Stored{
		Envelope: hostileEnvelope(), Route: hostile, Seq: 1, State: core.StateAbandoned, Reason: hostile, Attempts: 1, Owner: hostile, DueIn: time.Hour,
		LastError: hostile, DedupeKey: hostile,
	}
}

func (*hostileStore) Inspect(context.Context, string, string) (admin.Stored, error) {
	return hostileRecord(), nil
}

func (*hostileStore) List(context.Context, admin.Filter, admin.PageRequest) (admin.Listing, error) {
	return admin.Listing{Records: []admin.Stored{hostileRecord()}}, nil
}

func (*hostileStore) Counts(context.Context) ([]admin.Count, error) {
	return []admin.Count{{Route: hostile, State: core.StateAbandoned, Reason: hostile, N: 1}, {Route: hostile, State: core.StatePending, N: 2, Oldest: time.Hour}}, nil
}

func (*hostileStore) BlockedKeys(context.Context, admin.BlockedKeysRequest) ([]admin.BlockedKey, bool, error) {
	return []admin.BlockedKey{{Route: hostile, Key: hostile, Cause: "abandoned", Head: hostileRecord()}}, true, nil
}

func (*hostileStore) DecideHead(context.Context, string, string, string, admin.HeadAction) error {
	return errors.New(hostile)
}
