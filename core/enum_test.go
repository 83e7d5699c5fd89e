package core_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// TestEnumerationsHaveNames: each value has a name of its own; the text of an unknown value is its type and number.
func TestEnumerationsHaveNames(t *testing.T) {
	t.Parallel()
	for _, values := range [][]fmt.Stringer{
		{
			waybill.BackoffExponential, waybill.BackoffLinear, waybill.BackoffConstant, waybill.BackoffDelays, waybill.BackoffNone,
			waybill.BackoffCustom, waybill.BackoffKind(200),
		},
		{waybill.JitterEqual, waybill.JitterShare, waybill.JitterNone, waybill.JitterKind(200)},
		{waybill.HandlerProcessed, waybill.HandlerDuplicate, waybill.HandlerLeftOut, waybill.HandlerStatus(200)},
		{admin.HeadSkip, admin.HeadSetAside, admin.HeadRequeue, admin.HeadAction(200)},
		{core.InboxNone, core.InboxNew, core.InboxDuplicate, core.InboxStatus(200)},
		{core.KeyOrderNone, core.KeyOrderSerial, core.KeyOrderPipelinedPrefix, core.KeyOrder(200)},
		{core.WildcardsNone, core.WildcardsWord, core.WildcardsTail, core.WildcardsAll, core.Wildcards(200)},
		{core.VerdictNone, core.VerdictDone, core.VerdictRetry, core.VerdictReject, core.VerdictRelease, core.Verdict(200)},
		{
			core.StateNone, core.StatePending, core.StateProcessing, core.StatePublished, core.StateFailed, core.StateAbandoned,
			core.State(200),
		},
		{core.EventNone, core.EventStaged, core.EventHandedOut, core.EventRequeued, core.Event(200)},
		{core.HoldGranted, core.HoldSkipped, core.HoldGone, core.HoldStatus(200)},
		{core.NoticeKey, core.NoticeRecord, core.NoticeReread, core.NoticeDecide, core.NoticeKind(200)},
		{core.BlockedByRetry, core.BlockedByAbandoned, core.BlockedByHold, core.BlockReason(200)},
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
