package dispatch

import (
	"time"

	"github.com/waybill-go/waybill/core"
)

// revisit is a record that another session holds, or that was locked. It is read again.
type revisit struct {
	ref  core.Ref
	slot uint8
	key  string
	at   time.Time
	// decision is an operator's decision, if that is the reason.
	decision *core.Control
}

// visit schedules another read of a record, unless a decision has scheduled one.
func (rt *route) visit(v *revisit) {
	if old := rt.again[v.ref.Seq]; old == nil || old.decision == nil {
		rt.again[v.ref.Seq] = v
	}
}

// visitLater schedules another read of a record that another session holds.
func (rt *route) visitLater(ref core.Ref, slot uint8, name string) {
	if rt.again[ref.Seq] == nil && rt.has(ruleAgain) && !rt.anyones(name) {
		rt.again[ref.Seq] = &revisit{ref: ref, slot: slot, key: name, at: rt.now.Add(againAfter)}
	}
}
