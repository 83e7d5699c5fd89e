package waybill

import (
	"fmt"
	"strings"
)

// Health is the state of an engine, as its method Health returns it. It holds no secrets and no payload, and can be
// shown as JSON.
type Health struct {
	// Live is false if only a restart helps: the engine hangs, or ended with an error.
	Live bool `json:"live"`
	// Ready is true if the engine works: no check has failed.
	Ready bool `json:"ready"`
	// Checks are the findings, in a stable order.
	Checks []HealthCheck `json:"checks"`
}

// HealthCheck is one named finding.
type HealthCheck struct {
	// Name is stable, such as "store" or "route orders".
	Name   string       `json:"name"`
	Status HealthStatus `json:"status"`
	// Text is for people.
	Text string `json:"text"`
}

// HealthStatus is the result of a check.
type HealthStatus string

// The results of a check.
const (
	HealthOK       HealthStatus = "ok"
	HealthDegraded HealthStatus = "degraded" // works, but somebody should look
	HealthFailed   HealthStatus = "failed"   // does not work
)

// Add appends a check. A failed check sets Ready to false.
func (h *Health) Add(name string, status HealthStatus, format string, args ...any) {
	h.Checks = append(h.Checks, HealthCheck{Name: name, Status: status, Text: fmt.Sprintf(format, args...)})
	if status == HealthFailed {
		h.Ready = false
	}
}

// Check returns the check with this name, and whether there is one.
func (h Health) Check(name string) (HealthCheck, bool) {
	for _, c := range h.Checks {
		if c.Name == name {
			return c, true
		}
	}
	return HealthCheck{}, false
}

// String returns all checks, one a line.
func (h Health) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "live: %t, ready: %t\n", h.Live, h.Ready)
	for _, c := range h.Checks {
		fmt.Fprintf(&b, "%-8s %s: %s\n", c.Status, c.Name, c.Text)
	}
	return b.String()
}
