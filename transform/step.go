package transform

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// Header is the header that tells how a body was changed: the names of steps, in the order in which they were done,
// with commas between. Do not set it yourself on messages that go through this package.
const Header = "content-encoding"

// maxCodings bounds the codings of a message, which come from outside.
const maxCodings = 8

// Step is one change of a body. A Step must be safe for concurrent use.
type Step interface {
	// Coding is the step's name in [Header]: letters, digits, '-', '_' and '.', without spaces. It must stay the
	// same as long as messages with it can arrive.
	Coding() string
	// Validate reports the faults of the step's own fields, as [waybill.Invalid] does.
	Validate() error
	// Do returns the body to publish, or false if the step has nothing to do for the message. It must not change e,
	// whose [Header] names the steps before. The same message can come several times. An error without a class is
	// an outage: no attempt counts, and the route is tried again. An error of class permanent abandons the message.
	Do(ctx context.Context, e *waybill.Envelope) ([]byte, bool, error)
	// Undo returns the body as it was before Do. It must not change e, whose [Header] names the steps before. An
	// error without a class is an outage: the message goes back and the subscription pauses. Use it if a service
	// does not answer. If the service answers that it has no such thing, use [Missing]; for a body that no repair
	// makes readable use [Unreadable].
	Undo(ctx context.Context, e *waybill.Envelope) ([]byte, error)
}

// Required is a [Step] that can refuse a message to which it was not done.
type Required interface {
	Step
	// LeftOut returns the error about such a message, or nil to let it through.
	LeftOut() error
}

// Unreadable returns an error for a body that no repair makes readable: the message is parked as undecodable. Its text
// must hold nothing of the body.
func Unreadable(text string) error {
	return &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonUndecodable, Err: errors.New(text)}
}

// Missing returns an error for a message that names something which is not there: a key, a blob, a step. The thing may
// come later, so the message is tried again with the delays of its subscription. Then it is parked as undecodable. It
// is no outage, since a program that may publish can name a thing that never was.
func Missing(err error) error {
	return &waybill.Error{Class: waybill.ClassRejected, Reason: waybill.ReasonUndecodable, Err: err}
}

// problemsOf reports everything that is wrong with steps.
func problemsOf(steps []Step) (problems []string) {
	if len(steps) == 0 || len(steps) > maxCodings {
		return []string{fmt.Sprintf("steps: there are %d, not 1 to %d", len(steps), maxCodings)}
	}
	seen := map[string]bool{}
	for i, s := range steps {
		if check.Nil(s) {
			problems = append(problems, fmt.Sprintf("steps[%d]: is nil; leave it out", i))
			continue
		}
		name := s.Coding()
		switch {
		case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !isToken(r) }):
			problems = append(problems, fmt.Sprintf("steps[%d].Coding: %.40q is not made of letters, digits, '-', '_' and '.'", i, name))
		case seen[name]:
			problems = append(problems, fmt.Sprintf("steps[%d].Coding: %q is that of an earlier step; each needs its own", i, name))
		}
		seen[name] = true
		if err := s.Validate(); err != nil {
			problems = append(problems, fmt.Sprintf("steps[%d]: %s", i, err))
		}
	}
	return problems
}

func isToken(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}

// do returns e as it is published. It changes nothing that the caller's envelope holds.
func do(ctx context.Context, steps []Step, e waybill.Envelope) (waybill.Envelope, error) {
	own := false // the headers
	for _, s := range steps {
		body, changed, err := s.Do(ctx, &e)
		if err != nil {
			return e, classed(s.Coding(), err)
		}
		if !changed {
			continue
		}
		if !own {
			if e.Headers, own = maps.Clone(e.Headers), true; e.Headers == nil {
				e.Headers = map[string]string{}
			}
		}
		e.Body = body
		if before := e.Headers[Header]; before != "" {
			e.Headers[Header] = before + ", " + s.Coding()
		} else {
			e.Headers[Header] = s.Coding()
		}
	}
	return e, nil
}

// codingsOf returns the codings of the body of e, in lower case, first to last.
func codingsOf(e *waybill.Envelope) (codings []string) {
	for coding := range strings.SplitSeq(e.Headers[Header], ",") {
		if coding = strings.ToLower(strings.TrimSpace(coding)); coding != "" && coding != "identity" {
			codings = append(codings, coding)
		}
	}
	return codings
}

// undo returns d as it was before do, or d itself if nothing was done.
func undo(ctx context.Context, steps []Step, d *waybill.Delivery) (*waybill.Delivery, error) {
	if n := strings.Count(d.Envelope.Headers[Header], ",") + 1; n > maxCodings { // each costs time and memory
		return nil, classed(Header, Unreadable(fmt.Sprintf("names %d codings; at most %d are undone", n, maxCodings)))
	}
	codings := codingsOf(&d.Envelope)
	for _, s := range steps {
		if r, ok := s.(Required); ok && !slices.Contains(codings, strings.ToLower(s.Coding())) {
			if err := r.LeftOut(); err != nil {
				return nil, classed(s.Coding(), err)
			}
		}
	}
	if _, ok := d.Envelope.Headers[Header]; !ok {
		return d, nil
	}
	changed := *d
	changed.Envelope.Headers = maps.Clone(d.Envelope.Headers)
	for i, coding := range slices.Backward(codings) {
		s := find(steps, coding)
		if s == nil {
			return nil, classed(Header, Missing(fmt.Errorf("the body is encoded as %.40q, and the handler has no step for that; add it", coding)))
		}
		changed.Envelope.Headers[Header] = strings.Join(codings[:i], ", ")
		body, err := s.Undo(ctx, &changed.Envelope)
		if err != nil {
			return nil, classed(coding, err)
		}
		changed.Envelope.Body = body
	}
	delete(changed.Envelope.Headers, Header)
	return &changed, nil
}

// find returns the step with a name, which RFC 9110 compares without case, or nil.
func find(steps []Step, coding string) Step {
	for _, s := range steps {
		if strings.EqualFold(s.Coding(), coding) {
			return s
		}
	}
	return nil
}

// classed returns err with the class that it has, or as an outage.
func classed(coding string, err error) error {
	e := &waybill.Error{Op: "waybill/transform: " + coding, Class: waybill.ClassOf(err), Err: err}
	if e.Class == waybill.ClassUnknown {
		e.Class = waybill.ClassOutage
	}
	if inner, ok := errors.AsType[*waybill.Error](err); ok {
		e.Reason, e.TopicOnly, e.After = inner.Reason, inner.TopicOnly, inner.After
	}
	return e
}
