package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// WaitCause names why a record is not out.
type WaitCause string

// The causes. A record that can have several has the first one of this list.
const (
	WaitSchedule WaitCause = "schedule" // its time has not come
	WaitRetry    WaitCause = "retry"    // its next attempt is due later
	WaitHeld     WaitCause = "held"     // a member has it out
	WaitDecision WaitCause = "decision" // it was abandoned and blocks its key: an operator decides
	WaitKey      WaitCause = "key"      // another message of its key is before it
	WaitTopic    WaitCause = "topic"    // no queue is bound for its topic
	WaitLock     WaitCause = "lock"     // a transaction has locked it, and not only for a moment
	WaitNoRelay  WaitCause = "no_relay" // nobody serves its route
	WaitUnable   WaitCause = "unable"   // all who serve its route are paused, or their broker is away
	WaitTurn     WaitCause = "turn"     // none of these: it waits for its turn, or only its relay knows more
)

// Waiting is why a record is not out. The zero value says that it waits for nothing: it has ended.
type Waiting struct {
	Cause WaitCause
	// Record is the record that waits, without its body.
	Record Stored
	// Other is the message before it in its key (WaitKey), or the one that tries whether a queue is bound for their
	// topic (WaitTopic).
	Other *Stored
	// Because is why Other waits, of WaitKey.
	Because *Waiting
	// LockedBy names the transactions that have locked the record, as far as the store can tell, of WaitLock.
	LockedBy []string
	// Members are those registered for the route, of WaitUnable and WaitTurn. Of WaitNoRelay they have lost the
	// connection that shows that they live.
	Members []string
}

// Hindrances are what a store knows to stand in the way of a due record.
type Hindrances struct {
	// Ahead is the record that blocks the key of the record: one that waits for a retry, that a member holds, or
	// that was abandoned and blocks; else the first due one of the key, if that is another. It is nil if there is
	// none.
	Ahead *Stored
	// Trial is another record of its route and topic whose latest attempt failed since no queue is bound, as
	// [Unbound] says; nil if there is none, or if none is among the first thousand retries.
	Trial *Stored
	// Locked reports that a transaction has locked the record. LockedBy names those that the store can name, each
	// with its process in the database, its program, its role, and how long it is open, as far as the store may
	// see them.
	Locked   bool
	LockedBy []string
}

// Explainer knows the hindrances of a record. Ask it by [WhyWaits].
type Explainer interface {
	// Hindrances returns the causes for which rec, a record of this store, waits. With blockAfterAbandon an
	// abandoned record blocks its key, as the option of the relay's route says. Bodies are left out. It changes
	// nothing, and locks rec for one statement at most.
	Hindrances(ctx context.Context, rec *Stored, blockAfterAbandon bool) (Hindrances, error)
}

// Unbound reports whether the stored error of a record says that no queue was bound for its topic.
func Unbound(lastError string) bool {
	return strings.Contains(lastError, waybill.ErrUnroutable.Error())
}

// WhyWaits says why rec, which store has shown, is not out. What only the process of a relay knows, such as a breaker
// that is open for one topic, no store can tell: the cause is WaitTurn then, and the health of that relay says more. A
// store that is no [Explainer] cannot tell about keys, topics and locks.
func WhyWaits(ctx context.Context, store core.OutboxStore, rec *Stored, blockAfterAbandon bool) (Waiting, error) {
	return whyWaits(ctx, store, rec, blockAfterAbandon, true)
}

// whyWaits is WhyWaits. deeper is whether the message before rec in its key is asked about, too.
func whyWaits(ctx context.Context, store core.OutboxStore, rec *Stored, block, deeper bool) (Waiting, error) {
	w := Waiting{Record: *rec}
	w.Record.Envelope.Body = nil
	switch {
	case rec.State == core.StateProcessing:
		w.Cause = WaitHeld
	case rec.State.Terminal():
	case rec.DueIn > 0 && rec.State == core.StateFailed:
		w.Cause = WaitRetry
	case rec.DueIn > 0:
		w.Cause = WaitSchedule
	}
	if w.Cause != "" || rec.State.Terminal() {
		return w, nil
	}
	var in Hindrances
	if explainer, ok := core.As[Explainer](store); ok {
		var err error
		if in, err = explainer.Hindrances(ctx, rec, block); err != nil {
			return w, err
		}
		if in.Ahead == nil && in.Trial == nil && in.Locked {
			if in, err = later(ctx, explainer, rec, block); err != nil {
				return w, err
			}
		}
	}
	switch {
	case in.Ahead != nil:
		w.Cause, w.Other = WaitKey, in.Ahead
		if in.Ahead.State == core.StateAbandoned {
			w.Because = &Waiting{Cause: WaitDecision, Record: *in.Ahead}
		} else if deeper {
			because, err := whyWaits(ctx, store, in.Ahead, block, false)
			w.Because = &because
			return w, err
		}
	case in.Trial != nil:
		w.Cause, w.Other = WaitTopic, in.Trial
	case in.Locked:
		w.Cause, w.LockedBy = WaitLock, in.LockedBy
	default:
		return w, w.askMembers(ctx, store)
	}
	return w, nil
}

// lookAgain is the time between two looks at a lock. A relay that stores a result holds its lock for less.
const lookAgain = 250 * time.Millisecond

// later looks again at a record that is locked. A relay locks what it settles for a moment, which is no cause: an
// operator who ended that transaction would break the connection of a healthy relay.
func later(ctx context.Context, explainer Explainer, rec *Stored, block bool) (Hindrances, error) {
	timer := time.NewTimer(lookAgain)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return Hindrances{}, context.Cause(ctx)
	}
	return explainer.Hindrances(ctx, rec, block)
}

// askMembers sets the cause by the members that are registered for the route.
func (w *Waiting) askMembers(ctx context.Context, store core.OutboxStore) error {
	membership, err := store.Heartbeat(ctx, core.HeartbeatRequest{})
	if err != nil {
		return err
	}
	var gone, unable, able []string
	for i := range membership.Members {
		m := &membership.Members[i]
		for _, s := range m.Routes {
			switch {
			case s.Route != w.Record.Route:
			case m.PresenceLost:
				gone = append(gone, m.Name)
			case s.Unavailable:
				unable = append(unable, m.Name)
			default:
				able = append(able, m.Name)
			}
		}
	}
	switch {
	case len(able) > 0:
		w.Cause, w.Members = WaitTurn, able
	case len(unable) > 0:
		w.Cause, w.Members = WaitUnable, unable
	default:
		w.Cause, w.Members = WaitNoRelay, gone
	}
	return nil
}

// String says it in a sentence without a full stop.
func (w *Waiting) String() string {
	r := &w.Record
	switch w.Cause {
	case WaitSchedule:
		return "it is scheduled, and due in " + round(r.DueIn)
	case WaitRetry:
		text := fmt.Sprintf("its next attempt is due in %s, after %s", round(r.DueIn), attempts(r.Attempts))
		if Unbound(r.LastError) {
			return fmt.Sprintf("no queue is bound for its topic %s: %s", r.Envelope.Topic, text)
		}
		return text
	case WaitHeld:
		if r.LeaseIn <= 0 {
			return r.Owner + " has it out, and has shown no life for its whole lease"
		}
		return r.Owner + " has it out"
	case WaitDecision:
		return fmt.Sprintf("it was given up (%s), and its key waits until an operator decides about it", r.Reason)
	case WaitKey:
		text := fmt.Sprintf("message %s of topic %s is before it in its key", w.Other.Envelope.ID, w.Other.Envelope.Topic)
		if w.Because != nil && w.Because.Cause != "" {
			text += "; about that one: " + w.Because.String()
		}
		return text
	case WaitTopic:
		o := w.Other
		text := fmt.Sprintf("no queue is bound for its topic %s: message %s tries for all of them", r.Envelope.Topic, o.Envelope.ID)
		if !o.LastErrorAt.IsZero() {
			text += fmt.Sprintf(" (%s, the latest at %s)", attempts(o.Attempts), o.LastErrorAt.UTC().Format(time.RFC3339))
		}
		return text
	case WaitLock:
		if len(w.LockedBy) > 0 {
			return "a transaction has locked it: " + list(w.LockedBy)
		}
		return "a transaction has locked it"
	case WaitNoRelay:
		if len(w.Members) > 0 {
			return fmt.Sprintf("no relay serves route %s: %s lost the connection that shows that it lives", r.Route, list(w.Members))
		}
		return "no relay serves route " + r.Route
	case WaitUnable:
		return fmt.Sprintf("%s serves route %s and cannot send: it is paused, or its broker is away; /healthz of that relay says which", list(w.Members), r.Route)
	case WaitTurn:
		return fmt.Sprintf("its turn, as far as the store knows: %s serves route %s; if it stays so, /healthz of that relay says why",
			list(w.Members), r.Route)
	}
	return ""
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// list names some members.
func list(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// round shows a time as a person would say it.
func round(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
