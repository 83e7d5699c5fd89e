package core_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

// TestEnumerationsHaveNames: each value has a name of its own; what has none says its type and number.
func TestEnumerationsHaveNames(t *testing.T) {
	t.Parallel()
	for _, values := range [][]fmt.Stringer{
		{core.BackoffExponential, core.BackoffLinear, core.BackoffConstant, core.BackoffSchedule, core.BackoffNone, core.BackoffCustom, core.BackoffKind(200)},
		{core.JitterEqual, core.JitterShare, core.JitterOff, core.JitterKind(200)},
		{core.HandlerProcessed, core.HandlerDuplicate, core.HandlerLeftOut, core.HandlerStatus(200)},
		{core.HeadSkip, core.HeadPark, core.HeadRequeue, core.HeadAction(200)},
		{core.InboxNone, core.InboxProcessed, core.InboxDuplicate, core.InboxStatus(200)},
		{core.KeyOrderNone, core.KeyOrderSerial, core.KeyOrderPipelinedPrefix, core.KeyOrder(200)},
		{core.VerdictNone, core.VerdictDone, core.VerdictRetry, core.VerdictReject, core.VerdictGiveBack, core.Verdict(200)},
		{core.StateNone, core.StatePending, core.StateProcessing, core.StatePublished, core.StateFailed, core.StateAbandoned, core.State(200)},
		{core.EventNone, core.EventStaged, core.EventHandedOut, core.EventRequeued, core.Event(200)},
		{outbox.Gripped, outbox.Locked, outbox.Gone, outbox.Grip(200)},
		{outbox.ControlKey, outbox.ControlRecord, outbox.ControlFrom, outbox.ControlDecide, outbox.ControlKind(200)},
		{outbox.Retrying, outbox.Blocking, outbox.Held, outbox.Obstacle(200)},
	} {
		seen := map[string]bool{}
		for i, v := range values {
			name := v.String()
			if name == "" || seen[name] || strings.HasSuffix(name, "(200)") != (i == len(values)-1) {
				t.Errorf("value %d of %T is called %q", i, v, name)
			}
			seen[name] = true
		}
	}
}
