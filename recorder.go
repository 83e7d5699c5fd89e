package waybill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/check"
)

// Recorder keeps the events of an aggregate until they are staged. Embed it, by value, in the aggregate's struct, and
// call Record where an event happens. The struct then is an [Aggregate]. The zero value is ready to use. A Recorder is
// not safe for concurrent use. encoding/json ignores it.
type Recorder struct {
	events []Message
	staged int // of these, how many the latest StageRecorded took
}

// Aggregate is a struct that embeds a [Recorder]. Pass a pointer to it.
type Aggregate interface{ recorded() *Recorder }

func (r *Recorder) recorded() *Recorder { return r }

// Record keeps msgs until they are staged. Each message gets its id and its time now, unless it has them. So a second
// transaction stages the same messages, after a first one that failed or whose commit is in doubt.
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

// Recorded returns the messages that were recorded and not yet forgotten, in order.
func (r *Recorder) Recorded() []Message { return slices.Clone(r.events) }

// take returns the messages to stage and remembers their number.
func (r *Recorder) take() []Message {
	r.staged = len(r.events)
	return slices.Clone(r.events)
}

func (r *Recorder) forget() {
	r.events = slices.Clone(r.events[r.staged:])
	r.staged = 0
}

// StageRecorded stages in tx the recorded messages of aggregates, in one call: aggregate by aggregate, each in its own
// order. The aggregates keep them until [ForgetRecorded], which the caller calls after the commit. A transaction that
// is rolled back and tried again stages the same messages. With a [UnitOfWork] use [UnitOfWork.StageRecorded], which
// does both.
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

// ForgetRecorded makes aggregates forget the messages that the latest StageRecorded staged. They keep later ones.
func ForgetRecorded(aggregates ...Aggregate) {
	for _, a := range aggregates {
		if !check.Nil(a) {
			a.recorded().forget()
		}
	}
}
