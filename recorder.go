package waybill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/check"
)

// Recorder keeps the events of an aggregate until they are staged. Embed it, by value, in the aggregate's struct and
// call Record where something happens; the aggregate then is an [Aggregate]. Its zero value is ready. It is not safe
// for concurrent use. encoding/json does not see it.
type Recorder struct {
	events []Message
	staged int // of these, how many the latest StageRecorded took
}

// Aggregate is what embeds a [Recorder]; pass a pointer to it.
type Aggregate interface{ recorded() *Recorder }

func (r *Recorder) recorded() *Recorder { return r }

// Record keeps msgs until they are staged. Each gets its id and its time now, unless it has them, so that staging it
// again after a transaction that failed, or whose commit is in doubt, stages the same message.
func (r *Recorder) Record(msgs ...Message) {
	for i := range msgs {
		m := msgs[i]
		if m.ID == "" {
			m.ID = NewID()
		}
		if m.Time.IsZero() {
			m.Time = time.Now()
		}
		r.events = append(r.events, m)
	}
}

// Recorded returns what is recorded and not forgotten yet, in order.
func (r *Recorder) Recorded() []Message { return slices.Clone(r.events) }

// take returns what is to be staged and remembers how much it was.
func (r *Recorder) take() []Message {
	r.staged = len(r.events)
	return slices.Clone(r.events)
}

func (r *Recorder) forget() {
	r.events = slices.Clone(r.events[r.staged:])
	r.staged = 0
}

// StageRecorded stages in tx what aggregates have recorded, in one call: aggregate by aggregate, each in its own order.
// They keep it until [ForgetRecorded], to be called after the commit: a transaction that is rolled back and tried again
// stages the same messages. With a [UnitOfWork] all of it is one call, see [UnitOfWork.StageRecorded].
func StageRecorded[Tx any](ctx context.Context, stager Stager[Tx], tx Tx, aggregates ...Aggregate) ([]Staged, error) {
	var msgs []Message
	seen := map[*Recorder]bool{}
	for i, a := range aggregates {
		if check.Nil(a) {
			return nil, Invalid("waybill: stage recorded", fmt.Sprintf("aggregates[%d]: is nil", i))
		}
		if r := a.recorded(); !seen[r] {
			seen[r] = true
			msgs = append(msgs, r.take()...)
		}
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	return stager.Stage(ctx, tx, msgs...)
}

// ForgetRecorded makes aggregates forget what the latest StageRecorded staged. What they recorded since then they keep.
func ForgetRecorded(aggregates ...Aggregate) {
	for _, a := range aggregates {
		if !check.Nil(a) {
			a.recorded().forget()
		}
	}
}
