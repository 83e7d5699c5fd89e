package transform

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// Publisher returns next, with the steps done to each body before it is published, in their order. It is a
// [waybill.ErrInvalid] if next is nil, or if a step is not valid; all problems are told at once.
//
// Bounds of next are compared with the changed body. So a claim check lets messages pass that are larger than the
// broker takes; raise [waybill.Limits] for the stage of those.
func Publisher(next core.Publisher, steps ...Step) (core.Publisher, error) {
	problems := problemsOf(steps)
	if check.Nil(next) {
		problems = append(problems, "next: is nil; give the publisher of the transport")
	}
	if err := waybill.Invalid("waybill/transform: publisher", problems...); err != nil {
		return nil, err
	}
	return &publisher{Publisher: next, steps: append([]Step(nil), steps...)}, nil
}

type publisher struct {
	core.Publisher
	steps []Step
}

// Unwrap returns the publisher of the transport, whose capabilities stay visible.
func (p *publisher) Unwrap() any { return p.Publisher }

// Traits are those of the transport, without its bounds on bytes, since they are kept here.
func (p *publisher) Traits() core.PublisherTraits {
	t := p.Publisher.Traits()
	t.MaxMessageBytes, t.MaxBatchBytes = 0, 0
	return t
}

// Publish publishes the messages whose bodies can be changed. A message of the same key behind one that cannot is not
// published, and has core.ErrPredecessorFailed.
func (p *publisher) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := make(core.Results, len(batch))
	bounds := p.Publisher.Traits()
	changed, at := make([]waybill.Envelope, 0, len(batch)), make([]int, 0, len(batch))
	failed := map[string]bool{}
	var down error
	for i := range batch {
		key := batch[i].Key
		switch {
		case failed[key]:
			res[i] = waybill.ErrPredecessorFailed
			continue
		case down != nil: // the next would meet it, too
			res[i] = down
			continue
		}
		e, err := do(ctx, p.steps, batch[i])
		if size := e.Size(); err == nil && bounds.MaxMessageBytes > 0 && size > bounds.MaxMessageBytes {
			err = &waybill.Error{
				Op: "waybill/transform: publish", Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge,
				Err: fmt.Errorf("the message has %d bytes after all steps; the broker takes %d", size, bounds.MaxMessageBytes),
			}
		}
		if err == nil {
			changed, at = append(changed, e), append(at, i)
			continue
		}
		if res[i] = err; key != "" {
			failed[key] = true
		}
		if waybill.ClassOf(err) == waybill.ClassOutage {
			down = err
		}
	}
	for j, err := range p.parts(ctx, changed, bounds.MaxBatchBytes) {
		res[at[j]] = err
	}
	return res
}

// parts publishes a batch in parts of at most limit bytes, one after the other. Nothing goes on behind a failure: it
// could be of the same key.
func (p *publisher) parts(ctx context.Context, batch []waybill.Envelope, limit int) core.Results {
	var res core.Results
	for len(res) < len(batch) {
		from, size := len(res), 0
		to := from
		for to < len(batch) && (to == from || limit <= 0 || size+batch[to].Size() <= limit) {
			size += batch[to].Size()
			to++
		}
		part := p.Publisher.Publish(ctx, batch[from:to])
		if len(part) != to-from { // the relay says what is wrong with that
			return append(res, part...)
		}
		if res = append(res, part...); part.FirstErr() != nil {
			return append(res, core.AllFailed(len(batch)-to, waybill.ErrPredecessorFailed)...)
		}
	}
	return res
}
