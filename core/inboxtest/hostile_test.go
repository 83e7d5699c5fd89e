package inboxtest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

// hostile is an inbox that asks spoils before each call. If it says yes the call answers nothing.
type hostile struct {
	*memory.Store
	spoils func(method string) bool
}

func (h *hostile) Do(ctx context.Context, key core.InboxKey, fn handler) (core.InboxStatus, error) {
	if h.spoils("Do") {
		return core.InboxNone, nil
	}
	return h.Store.Do(ctx, key, fn)
}

func (h *hostile) DoBatch(ctx context.Context, keys []core.InboxKey, fn batchFn) ([]core.InboxStatus, error) {
	if h.spoils("DoBatch") {
		return nil, nil
	}
	return h.Store.DoBatch(ctx, keys, fn)
}

func (h *hostile) Mark(ctx context.Context, tx *memory.Tx, key core.InboxKey) (core.InboxStatus, error) {
	if h.spoils("Mark") {
		return core.InboxNone, nil
	}
	return h.Store.Mark(ctx, tx, key)
}

func (h *hostile) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if h.spoils("PurgeInbox") {
		return 1 << 40, nil
	}
	return h.Store.PurgeInbox(ctx, consumer, age, limit)
}

// runHostile runs a check, and reports whether it called anything that was to be spoiled.
func runHostile(t *testing.T, c *inboxtest.Check[*memory.Tx], method string, act func()) (called bool, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBroken(t, good)
		free := make(chan struct{})
		var mu sync.Mutex
		ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Timeout)
		defer cancel()
		err = c.Run(ctx, withTransactions{b, &hostile{b.Store, func(m string) bool {
			if m != method {
				return false
			}
			mu.Lock()
			called = true
			mu.Unlock()
			if act == nil {
				<-free
			} else {
				act()
			}
			return true
		}}})
		close(free)
		time.Sleep(time.Hour)
	})
	return called, err
}

// A call that panics, never returns, or answers nothing, fails the check that makes it, within its time.
func TestSuiteSurvivesHostileInboxes(t *testing.T) { // TE-01
	t.Parallel()
	for _, method := range []string{"Do", "DoBatch", "Mark", "PurgeInbox"} {
		for how, act := range map[string]func(){
			"panics": func() { panic("the adapter panics") }, "answers nothing": func() {}, "blocks": nil,
		} {
			t.Run(method+" "+how, func(t *testing.T) {
				t.Parallel()
				n := 0
				for _, c := range inboxtest.Checks[*memory.Tx]() {
					called, err := runHostile(t, &c, method, act)
					if !called {
						continue
					}
					n++
					// A handler's panic may go on.
					if err == nil || errors.Is(err, inboxtest.ErrNotDeclared) {
						t.Errorf("check %s does not notice: %v", c.Name, err)
					} else if s := err.Error(); !strings.HasPrefix(s, "check "+c.Name+" (") || strings.Contains(s, "about it: nothing") || strings.Contains(s, "%!") {
						t.Errorf("check %s fails without its name, its place or its promise: %v", c.Name, err)
					}
				}
				if n == 0 {
					t.Errorf("no check calls %s", method)
				}
			})
		}
	}
}
