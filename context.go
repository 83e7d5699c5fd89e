package waybill

import (
	"cmp"
	"context"
	"slices"

	"github.com/waybill-go/waybill/internal/check"
)

// MaxLineage bounds the ids in Envelope.Lineage. A longer chain keeps its ends; [LineageCut] stands for the middle.
const MaxLineage = 32

// LineageCut marks the place where a long lineage was cut.
const LineageCut = "..."

// Scope holds the values that messages staged under a context inherit, unless they set their own.
type Scope struct {
	CorrelationID, CausationID, Tenant, RunID string
	Lineage                                   []string
}

type scopeKey struct{}

type deliveryKey struct{}

// WithScope returns a context whose scope is s.
func WithScope(ctx context.Context, s Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// ScopeFrom returns ctx's scope, or the zero Scope.
func ScopeFrom(ctx context.Context) Scope {
	s, _ := ctx.Value(scopeKey{}).(Scope)
	return s
}

// WithCorrelationID returns a context under which messages carry this correlation id.
func WithCorrelationID(ctx context.Context, id string) context.Context {
	s := ScopeFrom(ctx)
	s.CorrelationID = id
	return WithScope(ctx, s)
}

// WithTenant returns a context under which messages carry this tenant.
func WithTenant(ctx context.Context, tenant string) context.Context {
	s := ScopeFrom(ctx)
	s.Tenant = tenant
	return WithScope(ctx, s)
}

// WithRunID returns a context under which messages carry this execution id.
func WithRunID(ctx context.Context, id string) context.Context {
	s := ScopeFrom(ctx)
	s.RunID = id
	return WithScope(ctx, s)
}

// WithLineageRoot returns a context under which the lineage of messages begins with id, such as the id of a request, a
// job or a saga. A message that is caused by another one inherits the lineage of that one.
func WithLineageRoot(ctx context.Context, id string) context.Context {
	s := ScopeFrom(ctx)
	s.Lineage = []string{id}
	return WithScope(ctx, s)
}

// WithDelivery returns the context in which a handler runs. DeliveryFrom finds d in it. Messages staged under it are
// caused by d: they share its correlation (its own id if it has none), tenant and run, and carry its lineage and id.
// They do not inherit values that cannot be staged, such as a foreign producer's tenant that holds a control character.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	e := &d.Envelope
	id := inheritable(e.ID)
	s := Scope{
		CorrelationID: cmp.Or(inheritable(e.CorrelationID), id), CausationID: id,
		Tenant: inheritable(e.Tenant), RunID: inheritable(e.RunID),
	}
	lineage := e.Lineage
	if slices.ContainsFunc(lineage, func(id string) bool { return check.Name(id) != "" }) {
		lineage = nil
	}
	s.Lineage = extendLineage(lineage, id)
	return WithScope(context.WithValue(ctx, deliveryKey{}, d), s)
}

// DeliveryFrom returns the delivery that is being handled under ctx. Handlers read it; they must not change it.
func DeliveryFrom(ctx context.Context) (*Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(*Delivery)
	return d, ok
}

// inheritable returns s, or "" if s cannot be staged.
func inheritable(s string) string {
	if check.Name(s) != "" {
		return ""
	}
	return s
}

func extendLineage(chain []string, id string) []string {
	if id == "" {
		return chain
	}
	out := append(append(make([]string, 0, len(chain)+1), chain...), id)
	if len(out) <= MaxLineage {
		return out
	}
	head := MaxLineage / 2
	tail := MaxLineage - head - 1
	cut := append(append(make([]string, 0, MaxLineage), out[:head]...), LineageCut)
	return append(cut, out[len(out)-tail:]...)
}
