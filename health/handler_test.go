package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/health"
	"github.com/waybill-go/waybill/internal/patience"
)

func state(live bool, status waybill.HealthStatus, text string) health.CheckerFunc {
	return func(context.Context) waybill.Health {
		h := waybill.Health{Live: live, Ready: true}
		h.Add("run", status, "%s", text)
		return h
	}
}

func handler(tb testing.TB, o health.Options) *health.Handler {
	tb.Helper()
	h, err := health.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// get returns the status and the body of an answer.
func get(h *health.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// want fails the test unless the three paths answer with these codes.
func want(tb testing.TB, h *health.Handler, live, ready, deep int) {
	tb.Helper()
	for path, code := range map[string]int{"/livez": live, "/readyz": ready, "/healthz": deep} {
		if got, body := get(h, path); got != code {
			tb.Errorf("%s: %d, not %d\n%s", path, got, code, body)
		}
	}
}

// OP-06
func TestCodes(t *testing.T) {
	t.Parallel()
	ok := state(true, waybill.HealthOK, "fine")
	for name, tc := range map[string]struct {
		engine, deep      health.Checker
		live, ready, full int
	}{
		"well":          {ok, ok, 200, 200, 200},
		"degraded":      {state(true, waybill.HealthDegraded, "slow"), ok, 200, 200, 200},
		"not ready":     {state(true, waybill.HealthFailed, "no lease"), ok, 200, 503, 503},
		"dead":          {state(false, waybill.HealthFailed, "ended"), ok, 503, 503, 503},
		"broker is off": {ok, state(true, waybill.HealthFailed, "refused"), 200, 200, 503},
		"panics":        {health.CheckerFunc(func(context.Context) waybill.Health { panic("oops") }), ok, 200, 503, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want(t, handler(t, health.Options{Engines: map[string]health.Checker{"e": tc.engine}, Deep: map[string]health.Checker{"d": tc.deep}}),
				tc.live, tc.ready, tc.full)
		})
	}
}

// OP-06: each answer names the checks and the causes of failures, the worst first, for people and for programs.
func TestTexts(t *testing.T) {
	t.Parallel()
	h := handler(t, health.Options{
		Engines: map[string]health.Checker{"orders": state(true, waybill.HealthOK, "fine"), "bills": state(true, waybill.HealthDegraded, "slow\nforged: line")},
		Deep:    map[string]health.Checker{"bus": state(true, waybill.HealthFailed, "refused")},
	})
	_, text := get(h, "/healthz")
	wantText := "failed; live: true, ready: false\nfailed    bus: run: refused\ndegraded  bills: run: slow forged: line\nok        orders: run: fine\n"
	if text != wantText {
		t.Errorf("%s\nnot\n%s", text, wantText)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
	r.Header.Set("Accept", "application/json")
	h.ServeHTTP(w, r)
	var report health.Report
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if c, ok := report.Parts["bus"].Check("run"); !ok || c.Text != "refused" || report.Status != waybill.HealthFailed || w.Code != 503 {
		t.Errorf("%d %+v", w.Code, report)
	}
	for path, code := range map[string]int{"/": 404, "/metrics": 404, "/livez/x": 404} {
		if got, _ := get(h, path); got != code {
			t.Errorf("%s: %d", path, got)
		}
	}
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/livez", nil)); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	_, err := health.New(health.Options{})
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
	var none *never
	_, err = health.New(health.Options{
		Engines: map[string]health.Checker{"a": none, "b": state(true, waybill.HealthOK, "")},
		Deep:    map[string]health.Checker{"b": state(true, waybill.HealthOK, ""), "c": nil}, Timeout: -1,
	})
	invalid, ok := errors.AsType[*waybill.InvalidError](err)
	if !ok || len(invalid.Problems) != 4 {
		t.Error(err)
	}
}

// never is a checker that hangs until it is released, beyond the end of its context.
type never struct {
	asked   atomic.Int32
	release chan struct{}
}

func (n *never) Health(context.Context) waybill.Health {
	n.asked.Add(1)
	<-n.release
	return state(true, waybill.HealthOK, "released")(nil)
}

// OP-06: a checker that hangs costs one goroutine and the bound, however many probes come; /livez does not wait for it.
func TestHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		c := &never{release: make(chan struct{})}
		h := handler(t, health.Options{Engines: map[string]health.Checker{"e": c, "f": state(true, waybill.HealthOK, "fine")}, Timeout: 3 * time.Second})
		begin := time.Now()
		done := make(chan int)
		for range 20 {
			go func() { code, _ := get(h, "/readyz"); done <- code }()
		}
		code, text := get(h, "/livez")
		if took := time.Since(begin); code != 200 || took > time.Second || !strings.Contains(text, "no answer for 500ms") || !strings.Contains(text, "f: run: fine") {
			t.Errorf("/livez: %d after %s: %s", code, took, text)
		}
		for range 20 {
			if code := <-done; code != 503 {
				t.Error(code)
			}
		}
		if took := time.Since(begin); took > 4*time.Second || c.asked.Load() != 1 {
			t.Errorf("%s, asked %d times", took, c.asked.Load())
		}
		patience.Pass(t, time.Minute)
		if code, text := get(h, "/readyz"); code != 503 || !strings.Contains(text, "no answer within 3s") || c.asked.Load() != 1 {
			t.Errorf("%d, asked %d times: %s", code, c.asked.Load(), text)
		}
		close(c.release)
		synctest.Wait()
		want(t, h, 200, 200, 200)
	})
}

// OP-06: an engine that takes a second to answer, while its database hangs say, does not look dead; one that said that
// it is dead does, from then on.
func TestLiveGoesByTheLatestAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		var dead atomic.Bool
		h := handler(t, health.Options{Engines: map[string]health.Checker{"e": health.CheckerFunc(func(context.Context) waybill.Health {
			time.Sleep(time.Second)
			if dead.Load() {
				return state(false, waybill.HealthFailed, "ended")(nil)
			}
			return state(true, waybill.HealthOK, "fine")(nil)
		})}})
		for range 3 {
			if code, text := get(h, "/livez"); code != 200 {
				t.Errorf("%d %s", code, text)
			}
			patience.Pass(t, 5*time.Second)
		}
		dead.Store(true)
		get(h, "/livez")
		patience.Pass(t, 5*time.Second)
		if code, text := get(h, "/livez"); code != 503 || !strings.Contains(text, "ended") {
			t.Errorf("%d %s", code, text)
		}
		patience.Pass(t, 5*time.Second)
	})
}
