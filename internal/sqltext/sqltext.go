// Package sqltext puts the numbers and words of the contract into SQL, so that no statement repeats a rule of package
// core or package waybill.
//
// # Guarantees
//
// A statement names a state as {failed}, a reason as {expired}, and a list of reasons as {cancelled_or_replaced};
// [Words] says what stands there.
//
// # Concurrency
//
// Words is safe for concurrent use.
//
// # Ownership
//
// The slice belongs to the caller.
//
// # Limits
//
// Files with migrations are not rendered: they are on disks already, and never change.
package sqltext

import (
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Words returns pairs of a place and its text, as strings.NewReplacer takes them. No two places are the same.
//
//   - {failed} and the like: the number of a state
//   - {terminal}: the list of the states that are terminal
//   - {expired} and the like: a reason, as quoted text
//   - {cancelled_or_replaced}: the list of the reasons of records that an application took back
//   - {unblocking}: the list of the reasons with which an abandoned record does not block its key
//   - {class_published} and the like: the number of a class of retention
//   - {tell_key}, {tell_record}, {tell_from}, {tell_decide}: the kind of a notice
//   - {retrying}, {blocking}, {held}: a block reason
//   - {hold_granted}, {hold_locked}, {hold_gone}: a hold status
//   - {done}, {maybe}, {in_flight}: what became of a cancel
func Words() []string {
	words := []string{
		"{tell_key}", number(core.NoticeKey), "{tell_record}", number(core.NoticeRecord),
		"{tell_from}", number(core.NoticeReread), "{tell_decide}", number(core.NoticeDecide),
		"{retrying}", number(core.BlockedByRetry), "{blocking}", number(core.BlockedByAbandoned), "{held}", number(core.BlockedByHold),
		"{hold_granted}", number(core.HoldGranted), "{hold_locked}", number(core.HoldSkipped), "{hold_gone}", number(core.HoldGone),
		"{done}", number(waybill.CancelDone), "{maybe}", number(waybill.CancelUncertain), "{in_flight}", number(waybill.CancelInFlight),
	}
	var terminal, cancelled []string
	unblocking := []string{"''"} // what has no reason does not block
	for s := core.StatePending; s <= core.StateAbandoned; s++ {
		words = append(words, "{"+s.String()+"}", number(s))
		if s.Terminal() {
			terminal = append(terminal, number(s))
		}
	}
	for _, c := range core.RetentionClasses() {
		words = append(words, "{class_"+c.String()+"}", number(c))
	}
	for _, r := range waybill.Reasons() {
		text := "'" + string(r) + "'"
		words = append(words, "{"+string(r)+"}", text)
		if r.Cancelled() {
			cancelled = append(cancelled, text)
		}
		if !r.Blocks() {
			unblocking = append(unblocking, text)
		}
	}
	return append(words, "{terminal}", list(terminal), "{cancelled_or_replaced}", list(cancelled), "{unblocking}", list(unblocking))
}

func number[T ~uint8](v T) string { return strconv.Itoa(int(v)) }

func list(texts []string) string { return "(" + strings.Join(texts, ", ") + ")" }
