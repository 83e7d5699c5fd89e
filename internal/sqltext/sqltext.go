// Package sqltext puts the numbers and words of the contract into SQL, so that no statement repeats a rule of package
// core or package waybill.
//
// # Guarantees
//
// A statement names a state as {failed}, a reason as {expired}, and a list of reasons as {withdrawn}; [Words] says what
// stands there.
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
//   - {withdrawn}: the list of the reasons of records that an application took back
//   - {unblocking}: the list of the reasons with which an abandoned record does not block its key
//   - {class_published} and the like: the number of a class of retention
//   - {tell_key}, {tell_record}, {tell_from}, {tell_decide}: the kind of a control record
//   - {retrying}, {blocking}, {held}: an obstacle
//   - {grip_held}, {grip_locked}, {grip_gone}: a grip
//   - {done}, {maybe}, {in_flight}: what became of a cancel
func Words() []string {
	words := []string{
		"{tell_key}", number(core.ControlKey), "{tell_record}", number(core.ControlRecord),
		"{tell_from}", number(core.ControlFrom), "{tell_decide}", number(core.ControlDecide),
		"{retrying}", number(core.ObstacleRetrying), "{blocking}", number(core.ObstacleBlocking), "{held}", number(core.ObstacleHeld),
		"{grip_held}", number(core.GripHeld), "{grip_locked}", number(core.GripLocked), "{grip_gone}", number(core.GripGone),
		"{done}", number(waybill.CancelDone), "{maybe}", number(waybill.CancelMaybe), "{in_flight}", number(waybill.CancelInFlight),
	}
	var terminal, withdrawn []string
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
		if r.Withdrawn() {
			withdrawn = append(withdrawn, text)
		}
		if !r.Blocks() {
			unblocking = append(unblocking, text)
		}
	}
	return append(words, "{terminal}", list(terminal), "{withdrawn}", list(withdrawn), "{unblocking}", list(unblocking))
}

func number[T ~uint8](v T) string { return strconv.Itoa(int(v)) }

func list(texts []string) string { return "(" + strings.Join(texts, ", ") + ")" }
