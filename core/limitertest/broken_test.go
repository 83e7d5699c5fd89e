package limitertest_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/limitertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model is a limiter in memory. Its fields break it.
type model struct {
	mu     sync.Mutex
	states map[string]string

	check   bool
	ctx     bool
	atomic  bool
	name    func(string) string
	keep    func(string) string
	initial string
	now     func() time.Time
}

func good() *model {
	same := func(s string) string { return s }
	return &model{states: map[string]string{}, check: true, ctx: true, atomic: true, name: same, keep: same, now: time.Now}
}

func (m *model) UpdateLimit(ctx context.Context, name string, change func(string, time.Time) string) error {
	if err := core.CheckLimit(name, ""); err != nil && m.check {
		return err
	}
	if err := ctx.Err(); err != nil && m.ctx {
		return err
	}
	name = m.name(name)
	m.mu.Lock()
	was, ok := m.states[name]
	if !ok {
		was = m.initial
	}
	if !m.atomic {
		m.mu.Unlock()
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	} else {
		defer m.mu.Unlock()
	}
	state := change(was, m.now())
	if err := core.CheckLimit("x", state); err != nil && m.check {
		return err
	}
	if !m.atomic {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	m.states[name] = m.keep(state)
	return nil
}

// shifted is a limiter with a clock of its own.
type shifted struct{ *model }

func (s shifted) UpdateLimit(ctx context.Context, name string, change func(string, time.Time) string) error {
	return s.model.UpdateLimit(ctx, name, func(state string, now time.Time) string { return change(state, now.Add(-time.Hour)) })
}

// TE-02: every check catches the limiter that breaks its promise, and a good one passes all.
func TestBrokenLimitersAreCaught(t *testing.T) { // TE-06
	t.Parallel()
	faults := map[string]struct {
		check string
		pair  func(m *model) (a, b core.Limiter)
	}{
		"never empty":     {"unknown-limit-is-empty", func(m *model) (a, b core.Limiter) { m.initial = "{}"; return m, m }},
		"a limit of each": {"state-is-kept", func(m *model) (a, b core.Limiter) { return m, good() }},
		"cut off": {"state-is-kept", func(m *model) (a, b core.Limiter) {
			m.keep = func(s string) string { return s[:min(len(s), 1000)] }
			return m, m
		}},
		"names cut off": {"names-are-apart", func(m *model) (a, b core.Limiter) {
			m.name = func(s string) string { return s[:min(len(s), 63)] }
			return m, m
		}},
		"read and written apart": {"no-update-is-lost", func(m *model) (a, b core.Limiter) { m.atomic = false; return m, m }},
		"no clock": {"clock-is-shared", func(m *model) (a, b core.Limiter) {
			m.now = func() time.Time { return time.Time{} }
			return m, m
		}},
		"a frozen clock": {"clock-is-shared", func(m *model) (a, b core.Limiter) {
			frozen := time.Now()
			m.now = func() time.Time { return frozen }
			return m, m
		}},
		"a clock of each":       {"clock-is-shared", func(m *model) (a, b core.Limiter) { return m, shifted{m} }},
		"anything as a name":    {"bad-arguments-are-refused", func(m *model) (a, b core.Limiter) { m.check = false; return m, m }},
		"deaf to the context":   {"ended-context-ends-the-call", func(m *model) (a, b core.Limiter) { m.ctx = false; return m, m }},
		"stores before it asks": {"panic-stores-nothing", func(m *model) (a, b core.Limiter) { return forgetful{m}, m }},
		"names without case": {"names-are-apart", func(m *model) (a, b core.Limiter) {
			m.name = strings.ToLower
			return m, m
		}},
		"names without spaces": {"names-are-apart", func(m *model) (a, b core.Limiter) {
			m.name = strings.TrimSpace
			return m, m
		}},
		"always away": {"no-update-is-lost", func(m *model) (a, b core.Limiter) { return away{}, m }},
		"panics":      {"state-is-kept", func(m *model) (a, b core.Limiter) { return hostile{func() { panic("oh") }}, m }},
		"panics beside others": {"no-update-is-lost", func(m *model) (a, b core.Limiter) {
			return hostile{func() { panic("oh") }}, m
		}},
		"answers nothing": {"state-is-kept", func(m *model) (a, b core.Limiter) { return hostile{func() {}}, m }},
		"never returns":   {"state-is-kept", func(m *model) (a, b core.Limiter) { return hostile{func() { time.Sleep(time.Hour) }}, m }},
	}
	backed := map[string]bool{}
	for _, tt := range faults {
		backed[tt.check] = true
	}
	for _, c := range limitertest.Checks() {
		if !backed[c.Name] {
			t.Errorf("no fault is behind %s", c.Name)
		}
	}
	for name, tt := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, b := tt.pair(good())
				for _, c := range limitertest.Checks() {
					if c.Name == tt.check {
						ctx, cancel := context.WithTimeout(t.Context(), limitertest.Timeout)
						defer cancel()
						defer time.Sleep(2 * time.Hour) // lets go of what waits in vain
						if err := c.Run(ctx, a, b); err == nil || !strings.HasPrefix(err.Error(), "check "+c.Name+" (checks.go:") {
							t.Errorf("%s does not notice, or does not say so: %v", c.Name, err)
						} else {
							t.Log(err)
						}
						return
					}
				}
				t.Errorf("there is no check %s", tt.check)
			})
		})
	}
	t.Run("good", func(t *testing.T) {
		t.Parallel()
		limitertest.Run(t, func(*testing.T) (a, b core.Limiter) {
			m := good()
			return m, m
		})
	})
}

// hostile is a limiter that only does harm.
type hostile struct{ act func() }

func (h hostile) UpdateLimit(context.Context, string, func(string, time.Time) string) error {
	h.act()
	return nil
}

// away is a limiter whose database cannot be reached.
type away struct{}

func (away) UpdateLimit(context.Context, string, func(string, time.Time) string) error {
	return &waybill.Error{Op: "limit", Class: waybill.ClassOutage, Err: errors.New("away")}
}

// forgetful empties the state before it asks what it becomes.
type forgetful struct{ *model }

func (f forgetful) UpdateLimit(ctx context.Context, name string, change func(string, time.Time) string) error {
	return f.model.UpdateLimit(ctx, name, func(state string, now time.Time) string {
		f.states[name] = ""
		return change(state, now)
	})
}
