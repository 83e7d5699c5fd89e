package obs

import (
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
)

// The application's propagator is honoured: its fields beside the trace context travel in the headers.
func TestBaggageTravels(t *testing.T) {
	before := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	t.Cleanup(func() { otel.SetTextMapPropagator(before) })
	bag, err := baggage.Parse("customer=7")
	if err != nil {
		t.Fatal(err)
	}
	var c Carried
	c.Inject(baggage.ContextWithBaggage(t.Context(), bag))
	if c.Headers["baggage"] != "customer=7" || c.Parent != "" {
		t.Fatalf("%+v", c)
	}
	if got := baggage.FromContext(c.Extract(t.Context())).Member("customer").Value(); got != "7" {
		t.Errorf("customer is %q", got)
	}
}
