package core

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// CheckCancelKeys returns keys with the default routes filled in, and with dedupe keys as a [StagedRow] has them, of
// their tenant or that of ctx; or an [*waybill.InvalidError] that lists every problem: neither or both of ID and
// DedupeKey, a DedupeKey without its Topic, names that cannot have been staged, more than MaxMessages keys. Every
// store's Cancel begins with it. It does not change its argument.
func CheckCancelKeys(ctx context.Context, keys []waybill.CancelKey) ([]waybill.CancelKey, error) {
	if len(keys) > waybill.MaxMessages {
		return nil, waybill.Invalid("waybill: cancel", fmt.Sprintf(
			"%d keys in one call; at most %d are allowed: split the call", len(keys), waybill.MaxMessages))
	}
	out, scope := make([]waybill.CancelKey, len(keys)), waybill.ScopeFrom(ctx)
	var p []string
	for i, k := range keys {
		k.Route = cmp.Or(k.Route, waybill.DefaultRoute)
		tenant := cmp.Or(k.Tenant, scope.Tenant)
		out[i] = waybill.CancelKey{Route: k.Route, ID: k.ID, Topic: k.Topic, DedupeKey: storedDedupeKey(tenant, k.DedupeKey)}
		bad := func(field, problem string) { p = append(p, fmt.Sprintf("keys[%d].%s: %s", i, field, problem)) }
		switch {
		case k.ID == "" && k.DedupeKey == "":
			bad("ID", "is empty, and DedupeKey too: name the message by one of them")
		case k.ID != "" && k.DedupeKey != "":
			bad("ID", "is set together with DedupeKey; choose one")
		case k.DedupeKey != "" && k.Topic == "":
			bad("Topic", "is empty: a dedupe key belongs to a topic, name it")
		}
		route, _, _ := strings.Cut(k.Route, "/")
		for _, f := range [...]struct{ name, value string }{
			{"Route", route}, {"ID", k.ID}, {"Topic", k.Topic}, {"DedupeKey", k.DedupeKey}, {"Tenant", k.Tenant},
		} {
			if s := check.Name(f.value); s != "" {
				bad(f.name, s)
			}
		}
		if len(p) >= 20 {
			p = append(p, "and maybe more")
			break
		}
	}
	if err := waybill.Invalid("waybill: cancel", p...); err != nil {
		return nil, err
	}
	return out, nil
}
