package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// asked is a Checker with its latest answers. It is asked one question at a time.
type asked struct {
	name    string
	checker Checker
	timeout time.Duration

	mu      sync.Mutex // guards the rest
	current *question  // nil if none is open
	latest  *waybill.Health
	open    bool // Health has not returned yet, though its question was answered without it
}

// question is one call of Health, which all probes of that time share.
type question struct {
	done  chan struct{} // closed when found is there
	found waybill.Health
	begun time.Time
}

func ask(checkers map[string]Checker, timeout time.Duration) []*asked {
	var all []*asked
	for _, name := range slices.Sorted(maps.Keys(checkers)) {
		all = append(all, &asked{name: name, checker: checkers[name], timeout: timeout})
	}
	return all
}

// ask returns the open question, or a new one.
func (a *asked) ask(ctx context.Context) *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil {
		return a.current
	}
	q := &question{done: make(chan struct{}), begun: time.Now()}
	if a.open { // it still hangs
		q.found = a.hanging()
		close(q.done)
		return q
	}
	a.current, a.open = q, true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
	answer := make(chan waybill.Health, 1)
	go func() {
		defer cancel()
		h := a.call(ctx)
		a.mu.Lock()
		a.open = false // before the answer is out: who asks again at once must not be told that it hangs
		a.mu.Unlock()
		answer <- h
	}()
	go func() {
		// A checker gets a moment to say itself that its time is over.
		limit := time.NewTimer(a.timeout + liveWait)
		defer limit.Stop()
		var found waybill.Health
		select {
		case found = <-answer:
		case <-limit.C:
			found = a.hanging()
		}
		a.mu.Lock()
		q.found, a.latest, a.current = found, &found, nil
		a.mu.Unlock()
		close(q.done)
	}()
	return q
}

// call calls Health. A panic is a failed check.
func (a *asked) call(ctx context.Context) (h waybill.Health) {
	defer func() {
		if v := recover(); v != nil {
			h = waybill.Health{Live: true}
			h.Add("check", waybill.HealthFailed, "it panicked: %s", core.ErrorText(fmt.Errorf("%v", v)))
		}
	}()
	return a.checker.Health(ctx)
}

func (a *asked) hanging() waybill.Health {
	h := waybill.Health{Live: true, Ready: true}
	h.Add("check", waybill.HealthFailed, "no answer within %s", a.timeout)
	return h
}

// answer is what is known now: the answer to q, or the one before, or that there is none.
func (a *asked) answer(q *question) waybill.Health {
	select {
	case <-q.done:
		return q.found
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h := waybill.Health{Live: true, Ready: true}
	if a.latest != nil {
		h = *a.latest
		h.Checks = slices.Clone(h.Checks)
	}
	h.Add("check", waybill.HealthFailed, "no answer for %s", time.Since(q.begun).Round(time.Millisecond))
	return h
}
