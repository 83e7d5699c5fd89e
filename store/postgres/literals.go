package postgres

import (
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// reasons are all reasons there are; a test compares them with those of package waybill.
var reasons = []waybill.Reason{
	waybill.ReasonRejected, waybill.ReasonAttempts, waybill.ReasonUndecodable, waybill.ReasonTooLarge, waybill.ReasonForbidden,
	waybill.ReasonUnroutable, waybill.ReasonExpired, waybill.ReasonCrashed, waybill.ReasonCancelled, waybill.ReasonReplaced,
	waybill.ReasonSkipped, waybill.ReasonSetAside, waybill.ReasonDeliveries, waybill.ReasonNoHandler, waybill.ReasonNoID,
	waybill.ReasonIDConflict, waybill.ReasonRetryPolicy,
}

// literals are the places of statements that stand for values of Waybill's own: no statement repeats a number or a word
// that another package decides on.
var literals = map[string]string{
	"{pending}":    number(core.StatePending),
	"{processing}": number(core.StateProcessing),
	"{published}":  number(core.StatePublished),
	"{failed}":     number(core.StateFailed),
	"{abandoned}":  number(core.StateAbandoned),
	"{terminal}":   listOf(states(), core.State.Terminal, number),

	"{expired}":     word(waybill.ReasonExpired),
	"{withdrawn}":   listOf(reasons, waybill.Reason.Withdrawn, word),
	"{unblocking}":  listOf(reasons, func(r waybill.Reason) bool { return !r.Blocks() }, word),
	"{done}":        number(waybill.CancelDone),
	"{maybe}":       number(waybill.CancelMaybe),
	"{in_flight}":   number(waybill.CancelInFlight),
	"{tell_key}":    number(core.ControlKey),
	"{tell_record}": number(core.ControlRecord),
	"{tell_from}":   number(core.ControlFrom),
	"{tell_decide}": number(core.ControlDecide),
	"{retrying}":    number(core.ObstacleRetrying),
	"{blocking}":    number(core.ObstacleBlocking),
	"{held}":        number(core.ObstacleHeld),
	"{grip_held}":   number(core.GripHeld),
	"{grip_locked}": number(core.GripLocked),
	"{grip_gone}":   number(core.GripGone),
}

func number[T ~uint8](v T) string { return strconv.Itoa(int(v)) }

func word(r waybill.Reason) string { return schema.QuoteText(string(r)) }

// states are all states of a record.
func states() []core.State {
	var all []core.State
	for s := core.StatePending; s <= core.StateAbandoned; s++ {
		all = append(all, s)
	}
	return all
}

// listOf returns those of all that are meant, as a list for IN.
func listOf[T any](all []T, meant func(T) bool, text func(T) string) string {
	var list []string
	for _, v := range all {
		if meant(v) {
			list = append(list, text(v))
		}
	}
	return "(" + strings.Join(list, ", ") + ")"
}

// newNames returns the names of an outbox, or of an inbox, with the literals.
func newNames(schemaName, outbox, inbox string) schema.Names {
	return schema.NewNames(schemaName, outbox, inbox).With(literals)
}
