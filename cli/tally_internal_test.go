package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// OP-09: the tally counts a message once, its repetitions on top, and no message that another run left behind.
func TestTally(t *testing.T) {
	t.Parallel()
	tally := newTally("run-", 3, 1)
	reached := tally.reach(2)
	for _, id := range []string{"run-0", "run-0", "other-1", "run-3", "run--1", "run-"} {
		tally.count(id)
	}
	select {
	case <-reached:
		t.Fatal("one message counted for two")
	default:
	}
	began := time.Now()
	tally.count("run-2")
	<-reached
	tally.count("run-2")
	tally.count("run-1")
	if distinct, counts, confirmed := tally.soFar(); distinct != 3 || counts != 5 || confirmed != 0 {
		t.Error(distinct, counts, confirmed)
	}
	if took := tally.since([]time.Time{began, began}); len(took) != 2 || took[0] < took[1] || took[1] <= 0 {
		t.Error(took)
	}
	<-tally.reach(3)
}

// OP-09: a publisher counts confirmed messages, and no others.
func TestTallyOfConfirms(t *testing.T) {
	t.Parallel()
	tally := newTally("run-", 2, 2)
	bad := errors.New("no")
	p := &benchPublisher{to: refusing{"run-1": bad}, tally: tally, ends: true}
	p.Publish(t.Context(), []waybill.Envelope{{ID: "run-0"}, {ID: "run-1"}})
	p.Publish(t.Context(), []waybill.Envelope{{ID: "run-0"}})
	if distinct, counts, confirmed := tally.soFar(); distinct != 1 || counts != 2 || confirmed != 2 || !errors.Is(tally.lastError(), bad) {
		t.Error(distinct, counts, confirmed, tally.lastError())
	}
}

type refusing map[string]error

func (refusing) Traits() core.PublisherTraits { return core.PublisherTraits{Confirmed: true} }

func (r refusing) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	out := make(core.Results, len(batch))
	for i := range batch {
		out[i] = r[batch[i].ID]
	}
	return out
}
