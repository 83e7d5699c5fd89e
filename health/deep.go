package health

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// maxNamed bounds the differences and routes that a text names.
const maxNamed = 5

// Store returns a deep check of a store: "check" (it answers, its schema and permissions are right, if it is a
// [core.Checker]), "schema" (it has no drift, if it is an [admin.DriftChecker]) and "backlog" (no message is due for
// longer than staleAfter, if it is an [admin.Counter]; 0 = not checked). It finds these on decorators too.
func Store(store any, staleAfter time.Duration) Checker {
	return CheckerFunc(func(ctx context.Context) waybill.Health {
		h := waybill.Health{Live: true, Ready: true}
		if !reaches(ctx, &h, store) {
			return h // the rest would say it again
		}
		drift(ctx, &h, store)
		backlog(ctx, &h, store, staleAfter)
		return h
	})
}

// Transport returns a deep check of a transport: "check" (the broker is reached and lets us in, if it is a
// [core.Checker]). A transport that cannot say is told as such.
func Transport(transport any) Checker {
	return CheckerFunc(func(ctx context.Context) waybill.Health {
		h := waybill.Health{Live: true, Ready: true}
		reaches(ctx, &h, transport)
		return h
	})
}

// reaches asks whether an adapter can work.
func reaches(ctx context.Context, h *waybill.Health, adapter any) bool {
	c, ok := core.As[core.Checker](adapter)
	if !ok {
		h.Add("check", waybill.HealthOK, "it cannot be asked; its failures show at the engines that use it")
		return true
	}
	if err := c.Check(ctx); err != nil {
		h.Add("check", waybill.HealthFailed, "%s", core.ErrorText(err))
		return false
	}
	h.Add("check", waybill.HealthOK, "it answers")
	return true
}

func drift(ctx context.Context, h *waybill.Health, store any) {
	d, ok := core.As[admin.DriftChecker](store)
	if !ok {
		return
	}
	found, err := d.Drift(ctx)
	switch {
	case err != nil:
		h.Add("schema", waybill.HealthFailed, "cannot be read: %s", core.ErrorText(err))
	case len(found) > 0:
		var texts []string
		for _, f := range found[:min(len(found), maxNamed)] {
			texts = append(texts, fmt.Sprintf("%s is %s, not %s", f.Object, f.Have, f.Want))
		}
		h.Add("schema", waybill.HealthFailed, "%d differences: %s", len(found), core.ErrorText(fmt.Errorf("%s", strings.Join(texts, "; "))))
	default:
		h.Add("schema", waybill.HealthOK, "as it must be")
	}
}

func backlog(ctx context.Context, h *waybill.Health, store any, staleAfter time.Duration) {
	c, ok := core.As[admin.Counter](store)
	if !ok || staleAfter <= 0 {
		return
	}
	counts, err := c.Counts(ctx)
	if err != nil {
		h.Add("backlog", waybill.HealthFailed, "unknown: %s", core.ErrorText(err))
		return
	}
	var stale []string
	for i := range counts {
		n := &counts[i]
		if (n.State == core.StatePending || n.State == core.StateFailed) && n.Oldest > staleAfter && len(stale) < maxNamed {
			about := ""
			switch {
			case n.AtLeast:
				about = "more than "
			case n.Estimated:
				about = "about "
			}
			stale = append(stale, fmt.Sprintf("%s%d %s on route %s, the oldest due for %s", about, n.N, n.State, n.Route, n.Oldest.Round(time.Second)))
		}
	}
	if len(stale) > 0 {
		h.Add("backlog", waybill.HealthFailed, "older than %s: %s", staleAfter, strings.Join(stale, "; "))
		return
	}
	h.Add("backlog", waybill.HealthOK, "nothing is due for longer than %s", staleAfter)
}
