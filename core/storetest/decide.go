package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var decideChecks = []named{
	{"decide-without-owner", decideWithoutOwner},
	{"decide-through-owner", decideThroughOwner},
	{"decide-waits-for-what-is-out", decideWaitsForWhatIsOut},
	{"decide-stands-when-nobody-acts", decideStandsWhenNobodyActs},
	{"decide-heeds-its-context", decideHeedsItsContext},
}

// stays bounds the wait for a decision that no owner carries out.
const stays = 10 * time.Second

// gone checks that an operator gave id up with reason, after so many attempts.
func (k *kit) gaveUp(id string, reason waybill.Reason, attempts int) {
	want := StoredRecord{State: core.StateAbandoned, Attempts: attempts, Reason: reason}
	if attempts > 0 {
		want.LastError = errNo.Error()
	}
	k.state("an operator decided about it", id, want)
}

// owned plays the owner of the route while fn runs: it carries out what is decided.
func (k *kit) owned(fn func()) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- suitetest.Guard(func() { k.driver.serveNotices(k, stop) }) }()
	err := suitetest.Guard(fn)
	close(stop)
	if err = errors.Join(err, <-done); err != nil {
		suitetest.Raise(err)
	}
}

// deciding decides in the background, and returns when the owner was told.
func (k *kit) deciding(ctx context.Context, key, id string, a admin.HeadAction) <-chan error {
	done := make(chan error, 1)
	kk := k.keeper()
	go func() {
		_, err := suitetest.Call(func() (any, error) { return nil, kk.DecideHead(ctx, k.route, key, id, a) })
		done <- err
	}()
	for w := (suitetest.Wait{}); ; {
		for _, c := range k.notices() {
			if c.Kind == core.NoticeDecide && c.ID == id {
				return done
			}
		}
		select {
		case err := <-done:
			k.fail("a decision about a due message was answered before its owner carried it out: %w", err)
		default:
		}
		k.failIf(!w.Again(k.ctx), "the owner of a due message is not told of a decision about it")
	}
}

func (k *kit) answer(done <-chan error, within time.Duration) error {
	err, ok := suitetest.ComeWithin(done, within)
	k.failIf(!ok, "a decision was not answered within %s", within)
	return err
}

// notices returns the notices of the route.
func (k *kit) notices() []core.Notice { return k.driver.notices(k) }

// A due head in a partition without an owner is given up at once; no relay can have it out. OP-18 OR-05.
func decideWithoutOwner(k *kit) {
	k.keeper()
	never := k.other(k.h) // its route was never served
	tx := k.raw()
	first := never.mustStage(tx, never.msg(waybill.Key("a")))[0].ID
	k.commit(tx)
	never.decided("a", first, admin.HeadSkip)
	never.gaveUp(first, waybill.ReasonSkipped, 0)
	never.none("it was skipped")

	ids := k.keys(4, "a")["a"]
	k.unowned()
	k.answers("a decision about a due message behind another one of its key", waybill.ErrNotFound, k.decide("a", ids[1], admin.HeadSkip))
	k.decided("a", ids[0], admin.HeadSkip)
	k.decided("a", ids[1], admin.HeadSetAside)
	k.gaveUp(ids[0], waybill.ReasonSkipped, 0)
	k.gaveUp(ids[1], waybill.ReasonSetAside, 0)
	k.drainIDs(ids[2:])
}

// A due head whose partition has an owner is given up by that owner. The owner is told, and the answer comes when it is
// done. No attempt counts. OP-18 OR-05.
func decideThroughOwner(k *kit) {
	k.keeper()
	ids := k.keys(4, "a")["a"]
	k.release(k.takeIDs(ids[:1])...)
	k.owned(func() {
		k.decided("a", ids[0], admin.HeadSkip)
		k.gaveUp(ids[0], waybill.ReasonSkipped, 0)
		k.decided("a", ids[1], admin.HeadSetAside)
		k.gaveUp(ids[1], waybill.ReasonSetAside, 0)
	})
	n := len(k.notices())
	k.failIf(n > 0, "decisions were carried out, and %d notices are left", n)
	k.drainIDs(ids[2:])
	if _, ok := core.As[admin.Redriver](k.store); ok {
		aside := admin.Filter{Reasons: []waybill.Reason{waybill.ReasonSetAside}}
		k.redriven("one that is set aside by force", admin.RedriveRequest{Filter: aside, Force: true}, 1, nil)
		k.drainIDs(ids[1:2])
	}
}

// A record that its owner has out is given up when it comes back, unless it was published; the answer says which.
// OP-18.
func decideWaitsForWhatIsOut(k *kit) {
	k.keeper()
	ids := k.keys(3, "a")["a"]
	out := k.driver.promise(k.mustLook()[:1])
	k.owned(func() {
		done := k.deciding(k.ctx, "a", ids[0], admin.HeadSkip)
		k.published(out...)
		k.answers("a decision about a message that was published meanwhile", waybill.ErrNotFound, k.answer(done, soon()))
	})
	out = k.driver.promise(k.mustLook()[:1])
	k.owned(func() {
		done := k.deciding(k.ctx, "a", ids[1], admin.HeadSetAside)
		k.retry(out[0], far)
		k.must("decide about a message that failed meanwhile", k.answer(done, soon()))
	})
	k.gaveUp(ids[1], waybill.ReasonSetAside, 1)
	k.drainIDs(ids[2:])
}

// mustLook returns the records in line.
func (k *kit) mustLook() []core.Record {
	ready := k.driver.look(k)
	k.failIf(len(ready) == 0, "nothing is in line")
	return ready
}

// A decision that the owner does not carry out is answered after some time, as in flight. It stands, and is carried out
// when the owner can. OP-18.
func decideStandsWhenNobodyActs(k *kit) {
	k.keeper()
	ids := k.keys(2, "a")["a"]
	done := k.deciding(k.ctx, "a", ids[0], admin.HeadSkip)
	k.answers("a decision that no owner carries out", waybill.ErrInFlight, k.answer(done, stays+soon()))
	k.drainIDs(ids[1:])
	k.gaveUp(ids[0], waybill.ReasonSkipped, 0)
}

// The caller need not wait: an ended context ends the call, and the decision stands. OP-18.
func decideHeedsItsContext(k *kit) {
	k.keeper()
	ids := k.keys(2, "a")["a"]
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	done := k.deciding(ctx, "a", ids[0], admin.HeadSetAside)
	cancel()
	err := k.answer(done, soon())
	k.failIf(err == nil, "a decision that was not carried out was answered with success when its context ended")
	k.drainIDs(ids[1:])
	k.gaveUp(ids[0], waybill.ReasonSetAside, 0)
}
