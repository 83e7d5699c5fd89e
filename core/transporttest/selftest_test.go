package transporttest_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
)

// TE-01: every broken transport is caught by the check that is named for it.
func TestBrokenTransportsAreCaught(t *testing.T) { // TE-06
	t.Parallel()
	checks := map[string]transporttest.Check{}
	for _, c := range transporttest.Checks() {
		checks[c.Name] = c
	}
	for _, c := range slices.Concat(brokenTransports, moreBrokenTransports, brokenEdges) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				check, ok := checks[c.check]
				if !ok {
					t.Fatalf("there is no check %q", c.check)
				}
				if err := check.Run(t.Context(), newWorld(t, c.faults).harness()); err == nil || errors.Is(err, transporttest.ErrNotDeclared) {
					t.Errorf("%s did not catch it: %v", c.check, err)
				} else {
					t.Log(err)
				}
			})
		})
	}
}

// The wrapper itself fails no check, with any set of capabilities.
func TestWrapperWithoutFaults(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]faults{
		"plain":            {},
		"ahead":            {ahead: &aheadFaults{}},
		"leased":           {lease: &leaseFaults{}},
		"one count":        {oneCount: true},
		"log":              {log: true},
		"one at a time":    {subscribe: func(_ *broken, s core.Subscription) core.Subscription { return narrow(s, 1) }},
		"batches of three": {traits: func(t *core.PublisherTraits) { t.MaxBatch = 3 }},
		"few bytes":        {traits: func(t *core.PublisherTraits) { t.MaxBatchBytes = 200 }},
		"partitions":       {subTraits: func(t *core.SubscriberTraits) { t.SharesByPartition = true }},
		"words":            {subTraits: func(t *core.SubscriberTraits) { t.Wildcards = core.WildcardsWord }},
		"no wildcards":     {subTraits: func(t *core.SubscriberTraits) { t.Wildcards = core.WildcardsNone }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transporttest.RunInBubble(t, func(t *testing.T) transporttest.Harness {
				t.Helper()
				return newWorld(t, f).harness()
			})
		})
	}
}

// narrow gives an ordered subscription a prefetch of n.
func narrow(s core.Subscription, n int) core.Subscription {
	if s.InOrder {
		s.Prefetch = n
	}
	return s
}

// A transport that declares nothing skips what it does not declare, and fails nothing.
func TestUndeclaredIsSkipped(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"key-order-batch", "publish-unroutable", "binding-wildcards", "close-counts-redeliveries",
		"retry-survives-receiver", "reject-parks", "restart",
	} {
		for _, c := range transporttest.Checks() {
			if c.Name != name {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, faults{})
				w.tr = modest{w.tr}
				if err := c.Run(t.Context(), w.harness()); !errors.Is(err, transporttest.ErrNotDeclared) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
}

// TE-02: no check is without a transport that it catches.
func TestEveryCheckCatchesSomething(t *testing.T) { // TE-06
	t.Parallel()
	caught := map[string]bool{}
	for _, c := range slices.Concat(brokenTransports, moreBrokenTransports, brokenEdges) {
		caught[c.check] = true
	}
	for _, c := range brokenParkedQueues {
		caught[c.check] = true
	}
	for _, c := range transporttest.Checks() {
		if !caught[c.Name] {
			t.Errorf("no broken transport stands behind the check %q", c.Name)
		}
	}
}

func TestChecksAreNamed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range transporttest.Checks() {
		if c.Name == "" || c.Doc == "" || c.Run == nil || seen[c.Name] || strings.Trim(c.Name, "abcdefghijklmnopqrstuvwxyz-") != "" {
			t.Errorf("check %q has a bad name, a name twice, no promise, or no function", c.Name)
		}
		seen[c.Name] = true
	}
	if reflect.TypeFor[waybill.Envelope]().NumField() != 20 {
		t.Error("waybill.Envelope has another number of fields: add the new ones to full and roundTripUnicode")
	}
}

type modest struct{ core.Transport }

func (modest) Traits() core.PublisherTraits            { return core.PublisherTraits{} }
func (modest) SubscriberTraits() core.SubscriberTraits { return core.SubscriberTraits{} }
