package outboxtest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
)

// hostileMethod returns a store with a method that acts before, and then answers nothing.
func hostileMethod(method string, act func()) fault {
	switch method {
	case "Heartbeat":
		return fault{heartbeat: func(context.Context, *broken, core.HeartbeatRequest) (core.Membership, error) {
			act()
			return core.Membership{}, nil
		}}
	case "Read":
		return fault{read: func(context.Context, *broken, core.Session, core.ReadRequest) (core.ReadResult, error) {
			act()
			return core.ReadResult{}, nil
		}}
	case "Hold":
		return fault{hold: func(context.Context, *broken, core.Session, core.HoldRequest) ([]core.HoldResult, error) {
			act()
			return nil, nil
		}}
	case "ReleasePartition":
		return fault{release: func(context.Context, *releaseCall) (bool, error) {
			act()
			return false, nil
		}}
	case "Due":
		return fault{due: func(context.Context, *broken, core.Session, []core.RouteSlots, int) (core.DueResult, error) {
			act()
			return core.DueResult{}, nil
		}}
	case "Settle":
		return fault{settle: func(context.Context, *broken, core.Session, []core.Outcome) core.Results { act(); return nil }}
	case "Acquire":
		return fault{acquire: func(context.Context, *broken) (int64, <-chan struct{}, error) { act(); return 0, nil, nil }}
	}
	panic("no method is called " + method)
}

// runHostile runs a check, and reports whether it called the method. Without act the method blocks for ever.
func runHostile(t *testing.T, c *outboxtest.Check, method string, act func()) (called bool, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var mu sync.Mutex
		f := hostileMethod(method, func() {
			mu.Lock()
			called = true
			mu.Unlock()
			if act == nil {
				<-free
			} else {
				act()
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), outboxtest.Timeout)
		defer cancel()
		err = c.Run(ctx, newBroken(f))
		close(free)
		time.Sleep(time.Hour)
	})
	return called, err
}

// hostileChecks are checks that call the method, one at least for each thing that it does.
var hostileChecks = map[string][]string{
	"Heartbeat":        {"heartbeat-repeats", "evicted-session-is-not-known", "published-does-not-come-again", "crashes-count-to-ten"},
	"Read":             {"range-is-in-order", "envelope-comes-back", "newly-owned-comes-in-pages", "large-answers-are-whole"},
	"Hold":             {"holders-never-share", "hold-repeats", "next-keeps-to-its-bytes", "stagers-do-not-fail-beside-members"},
	"ReleasePartition": {"release-repeats", "release-needs-the-owner", "releases-run-at-once"},
	"Due":              {"due-holds-retries", "next-in-is-exact", "timers-get-greater-numbers-once", "bad-limits-do-no-harm"},
	"Settle":           {"settle-twice-applies-once", "one-refused-outcome-is-alone", "retry-counts-and-waits", "zero-outcome-is-refused"},
	"Acquire":          {"acquired-token-is-present", "token-is-missing-after-its-end", "acquire-has-new-tokens"},
}

// A call that panics, never returns, or answers nothing fails the check that makes it, within its time.
func TestSuiteSurvivesHostileStores(t *testing.T) { // TE-01
	t.Parallel()
	all := map[string]*outboxtest.Check{}
	for _, c := range outboxtest.Checks() {
		all[c.Name] = &c
	}
	for method, checks := range hostileChecks {
		for how, act := range map[string]func(){
			"panics": func() { panic("the adapter panics") }, "answers nothing": func() {}, "blocks": nil,
		} {
			for _, name := range checks {
				t.Run(method+" "+how+"/"+name, func(t *testing.T) {
					t.Parallel()
					c := all[name]
					if c == nil {
						t.Fatalf("no check is called %s", name)
					}
					called, err := runHostile(t, c, method, act)
					if method == "Acquire" && how == "answers nothing" && errors.Is(err, outboxtest.ErrNotDeclared) {
						return // it has no such resource now
					}
					if !called || err == nil || errors.Is(err, outboxtest.ErrNotDeclared) {
						t.Fatalf("check %s does not notice (it calls %s: %v): %v", name, method, called, err)
					}
					if s := err.Error(); !strings.HasPrefix(s, "check "+name+" (") || strings.Contains(s, "about it: nothing") || strings.Contains(s, "%!") {
						t.Errorf("check %s fails without its name, its place or its promise: %v", name, err)
					}
				})
			}
		}
	}
}
