package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// Defaults and bounds of Options.
const (
	// DefaultTimeout is longer than the five seconds after which a relay says that its loop hangs.
	DefaultTimeout = 6 * time.Second
	maxTimeout     = 5 * time.Minute
	// liveWait is how long /livez waits for an answer before it goes by the one before.
	liveWait = 500 * time.Millisecond
)

// Checker says how it is. A relay.Relay and a consumer.Consumer are Checkers. Health must be safe for concurrent use
// and should return soon after its context ended.
type Checker interface {
	Health(ctx context.Context) waybill.Health
}

// CheckerFunc is a function as a Checker.
type CheckerFunc func(ctx context.Context) waybill.Health

// Health calls f.
func (f CheckerFunc) Health(ctx context.Context) waybill.Health { return f(ctx) }

// Options has the checkers of a handler. At least one is needed.
type Options struct {
	// Engines are the relays and consumers by name, which every path asks.
	Engines map[string]Checker
	// Deep are further checks by name, which only /healthz asks; see [Store] and [Transport].
	Deep map[string]Checker
	// Timeout bounds one question; default 6 s, at most 5 min.
	Timeout time.Duration
}

// Validate reports all problems of o as one [*waybill.InvalidError], or nil.
func (o Options) Validate() error {
	var p []string
	if len(o.Engines)+len(o.Deep) == 0 {
		p = append(p, "Engines: is empty, and so is Deep: give a relay or a consumer")
	}
	if o.Timeout < 0 || o.Timeout > maxTimeout {
		p = append(p, fmt.Sprintf("Timeout: %s is not between 0 (the default) and %s", o.Timeout, maxTimeout))
	}
	for field, checkers := range map[string]map[string]Checker{"Deep": o.Deep, "Engines": o.Engines} {
		for name, c := range checkers {
			if check.Nil(c) {
				p = append(p, fmt.Sprintf("%s[%q]: is nil; look at the error of its constructor", field, name))
			}
		}
	}
	for name := range o.Deep {
		if o.Engines[name] != nil {
			p = append(p, fmt.Sprintf("Deep[%q]: an engine has that name too; give it another one", name))
		}
	}
	slices.Sort(p)
	return waybill.Invalid("waybill/health: options", p...)
}

// Report is the answer to a probe.
type Report struct {
	// Status is the worst of all checks, and Live and Ready are those of all engines.
	Status waybill.HealthStatus `json:"status"`
	Live   bool                 `json:"live"`
	Ready  bool                 `json:"ready"`
	// Parts are what was asked, by name.
	Parts map[string]waybill.Health `json:"parts"`
}

// String returns all checks, one a line, the worst first.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; live: %t, ready: %t\n", r.Status, r.Live, r.Ready)
	for _, status := range [...]waybill.HealthStatus{waybill.HealthFailed, waybill.HealthDegraded, waybill.HealthOK} {
		for _, name := range slices.Sorted(maps.Keys(r.Parts)) {
			for _, c := range r.Parts[name].Checks {
				if c.Status == status {
					fmt.Fprintf(&b, "%-8s  %s: %s: %s\n", c.Status, name, c.Name, strings.Join(strings.Fields(c.Text), " "))
				}
			}
		}
	}
	return b.String()
}

// Handler answers /livez, /readyz and /healthz, as text or, for those who accept application/json, as a [Report]. Make
// one with New.
type Handler struct {
	mux           http.ServeMux
	engines, deep []*asked
}

// New returns a handler, or an [*waybill.InvalidError] with all problems of opts.
func New(opts Options) (*Handler, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	h := &Handler{engines: ask(opts.Engines, opts.Timeout), deep: ask(opts.Deep, opts.Timeout)}
	h.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		report := h.collect(r.Context(), h.engines, liveWait)
		write(w, r, report, report.Live)
	})
	h.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		report := h.collect(r.Context(), h.engines, opts.Timeout)
		write(w, r, report, report.Live && report.Ready)
	})
	h.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		report := h.Report(r.Context())
		write(w, r, report, report.Status != waybill.HealthFailed)
	})
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// Report asks everything, as /healthz does. It returns soon after ctx ended; a checker that has not answered then has
// failed.
func (h *Handler) Report(ctx context.Context) Report {
	return h.collect(ctx, slices.Concat(h.engines, h.deep), maxTimeout)
}

// collect asks all at once.
func (h *Handler) collect(ctx context.Context, all []*asked, wait time.Duration) Report {
	r := Report{Status: waybill.HealthOK, Live: true, Ready: true, Parts: map[string]waybill.Health{}}
	asking := make([]*question, len(all))
	for i, a := range all {
		asking[i] = a.ask(ctx)
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	over := limit.C
	for i, a := range all {
		select {
		case <-asking[i].done:
		default:
			select {
			case <-asking[i].done:
			case <-over:
				over = closedTime // for the others, too
			case <-ctx.Done():
			}
		}
		part := a.answer(asking[i])
		r.Parts[a.name] = part
		r.Live = r.Live && part.Live
		r.Ready = r.Ready && part.Ready
		for _, c := range part.Checks {
			if c.Status == waybill.HealthFailed || c.Status == waybill.HealthDegraded && r.Status == waybill.HealthOK {
				r.Status = c.Status
			}
		}
	}
	return r
}

// closedTime is a timer that has fired for everybody.
var closedTime = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

func write(w http.ResponseWriter, r *http.Request, report Report, ok bool) {
	status := http.StatusOK
	if !ok {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(report) // a prober that is gone is nobody's error
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(report.String()))
}
