package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// MarkCheck is one promise of a [core.MarkStore].
type MarkCheck struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Run returns nil if the promise holds, and else an error that names the wrong behaviour. It leaves marks of
	// keys that no other run uses.
	Run func(ctx context.Context, store core.MarkStore) error
}

// MarkChecks returns all checks of a [core.MarkStore].
func MarkChecks() []MarkCheck {
	var all []MarkCheck
	for _, c := range []struct {
		name string
		fn   func(k *markKit)
	}{
		{"claim-is-exclusive", claimIsExclusive},
		{"claim-ends-with-its-lease", claimEndsWithItsLease},
		{"claim-is-renewed-by-its-token", claimIsRenewed},
		{"forgotten-claim-is-free", forgottenClaimIsFree},
		{"only-the-token-forgets", onlyTheTokenForgets},
		{"done-is-done", doneIsDone},
		{"done-is-kept", doneIsKept},
		{"keys-are-apart", keysAreApart},
		{"bad-mark-is-refused", badMarkIsRefused},
		{"storm-has-one-claim", stormHasOneClaim},
		{"marks-heed-their-context", marksHeedTheirContext},
		{"done-for-another-content", doneForAnotherContent},
	} {
		all = append(all, MarkCheck{Name: c.name, Run: func(ctx context.Context, store core.MarkStore) error {
			key := core.InboxKey{Consumer: "c-" + waybill.NewID(), Source: "/inboxtest", ID: "1"}
			return source.Do(ctx, c.name, func() { c.fn(&markKit{base{ctx}, store, key}) })
		}})
	}
	return all
}

// RunMarks makes every check of a [core.MarkStore] a subtest. A store can be shared.
func RunMarks(t *testing.T, newStore func(t *testing.T) core.MarkStore) {
	t.Helper()
	conformance.Run(t, marksWith(newStore))
}

// RunMarksInBubble is RunMarks with every check in a testing/synctest bubble of its own, in which waiting takes no
// time.
func RunMarksInBubble(t *testing.T, newStore func(t *testing.T) core.MarkStore) {
	t.Helper()
	conformance.RunInBubble(t, marksWith(newStore))
}

func marksWith(newStore func(t *testing.T) core.MarkStore) []suitetest.Check {
	return suitetest.With(MarkChecks(), newStore, func(c MarkCheck) (string, func(context.Context, core.MarkStore) error) { return c.Name, c.Run })
}

// markLease is one that passes while a check waits. Clocks of stores may count whole seconds.
const markLease = 2 * time.Second

// markKit is what a check of marks works with.
type markKit struct {
	base
	store core.MarkStore
	key   core.InboxKey
}

// The answers of BeginMark.
const (
	claimed = "claimed"
	busy    = "busy"
	done    = "done"

	conflict = "done for another content"
)

func answer(st core.InboxStatus, err error) string {
	switch {
	case st == core.InboxNone && errors.Is(err, waybill.ErrInFlight):
		return busy
	case st == core.InboxNew && err == nil:
		return claimed
	case st == core.InboxDuplicate && err == nil:
		return done
	case st == core.InboxConflict && err == nil:
		return conflict
	}
	return fmt.Sprintf("status %s and error %v", st, err)
}

func (k *markKit) begin(when, token string, lease time.Duration, want string) {
	got := answer(k.store.BeginMark(k.ctx, k.key, token, lease))
	k.failIf(got != want, "%s: BeginMark answers %s, want %s", when, got, want)
}

// eventually asks until BeginMark answers want.
func (k *markKit) eventually(when, token, want string) {
	for w := (suitetest.Wait{}); ; {
		got := answer(k.store.BeginMark(k.ctx, k.key, token, time.Hour))
		if got == want {
			return
		}
		k.failIf(!w.Again(k.ctx), "%s: BeginMark still answers %s after %s, want %s", when, got, suitetest.Patience, want)
	}
}

// A key that one run has claimed is in flight for all others. IN-07.
func claimIsExclusive(k *markKit) {
	k.begin("first", "a", time.Hour, claimed)
	k.begin("while another run has it", "b", time.Hour, busy)
	k.begin("again", "b", time.Hour, busy)
}

// A claim ends with its lease, not before, and the run that had it cannot renew it then. IN-07.
func claimEndsWithItsLease(k *markKit) {
	start := time.Now() // the lease begins with the call, which may be slow to return
	k.begin("first", "a", markLease, claimed)
	k.eventually("after the lease", "b", claimed)
	took := time.Since(start)
	k.failIf(took < markLease/2, "a claim of %s ended after %s", markLease, took)
	k.begin("the first one again", "a", time.Hour, busy)
}

// The same token renews its claim. IN-07.
func claimIsRenewed(k *markKit) {
	k.begin("first", "a", markLease, claimed)
	k.begin("by the same token", "a", time.Hour, claimed)
	k.sleep(markLease + time.Second)
	k.begin("after the first lease", "b", time.Hour, busy)
}

// A claim that its run gave back is free at once. IN-07.
func forgottenClaimIsFree(k *markKit) {
	k.must("forget what nobody claimed", k.store.ForgetMark(k.ctx, k.key, "a"))
	k.begin("first", "a", time.Hour, claimed)
	k.must("forget", k.store.ForgetMark(k.ctx, k.key, "a"))
	k.begin("after it was forgotten", "b", time.Hour, claimed)
}

// Another run cannot give a claim back. IN-07.
func onlyTheTokenForgets(k *markKit) {
	k.begin("first", "a", time.Hour, claimed)
	k.must("forget another's", k.store.ForgetMark(k.ctx, k.key, "b"))
	k.begin("after another token forgot it", "c", time.Hour, busy)
}

// A key that is done is a duplicate for everybody, and nothing makes it new. IN-07.
func doneIsDone(k *markKit) {
	k.begin("first", "a", time.Hour, claimed)
	k.must("finish", k.store.FinishMark(k.ctx, k.key, time.Hour))
	k.begin("when done", "b", time.Hour, done)
	k.begin("when done, by the same token", "a", time.Hour, done)
	k.must("forget", k.store.ForgetMark(k.ctx, k.key, "a"))
	k.begin("done, and forgotten by its token", "b", time.Hour, done)
	k.must("finish again", k.store.FinishMark(k.ctx, k.key, 0))
	k.begin("done for ever", "b", time.Hour, done)
}

// A run that finishes after its lease, when another one has the claim, has had its effect: the key is done. It stays so
// for as long as was asked for. IN-07.
func doneIsKept(k *markKit) {
	k.begin("first", "a", markLease, claimed)
	k.eventually("after the lease", "b", claimed)
	k.must("finish", k.store.FinishMark(k.ctx, k.key, 2*time.Hour))
	k.must("forget", k.store.ForgetMark(k.ctx, k.key, "b"))
	k.sleep(markLease + time.Second) // a done mark does not end with a lease
	k.begin("done, by a run whose lease had ended", "c", time.Hour, done)
}

// Keys that differ in anything are different keys: case and space count. IN-01.
func keysAreApart(k *markKit) {
	k.begin("first", "a", time.Hour, claimed)
	first := k.key
	for _, other := range []core.InboxKey{
		{Consumer: first.Consumer + "2", Source: first.Source, ID: first.ID},
		{Consumer: first.Consumer, Source: first.Source + "2", ID: first.ID},
		{Consumer: first.Consumer, Source: first.Source, ID: first.ID + "2"},
		{Consumer: first.Consumer, Source: first.Source, ID: first.ID + " "},
		{Consumer: first.Consumer, Source: first.Source + "1", ID: first.ID[1:] + "x"},
		{Consumer: first.Consumer, Source: "/Inboxtest", ID: first.ID},
		{Consumer: first.Consumer, Source: first.Source, ID: "x"},
		{Consumer: first.Consumer, Source: first.Source, ID: "X"},
		{Consumer: "C" + first.Consumer[1:], Source: first.Source, ID: first.ID},
		{Consumer: first.Consumer, Source: first.Source + "/" + first.ID, ID: "é"},
	} {
		k.key = other
		k.begin(fmt.Sprintf("%q beside %q", other, first), "b", time.Hour, claimed)
	}
}

// Every method refuses a key that is incomplete or no text. IN-07.
func badMarkIsRefused(k *markKit) {
	for _, key := range []core.InboxKey{{Source: "/s", ID: "1"}, {Consumer: "c", ID: "1"}, {Consumer: "c", Source: "/s"}, {Consumer: "c", Source: "/s", ID: "\x00"}} {
		_, begin := k.store.BeginMark(k.ctx, key, "a", time.Hour)
		for what, err := range map[string]error{"BeginMark": begin, "FinishMark": k.store.FinishMark(k.ctx, key, time.Hour), "ForgetMark": k.store.ForgetMark(k.ctx, key, "a")} {
			k.failIf(!errors.Is(err, waybill.ErrInvalid), "%s of key %+v: %w, want waybill.ErrInvalid", what, key, err)
		}
	}
}

// Of many runs at a time exactly one has the claim. IN-07.
func stormHasOneClaim(k *markKit) {
	const runs = 16
	answers := make(chan string, runs)
	for i := range runs {
		go func() {
			answers <- answer(suitetest.Call(func() (core.InboxStatus, error) {
				return k.store.BeginMark(k.ctx, k.key, fmt.Sprint("t", i), time.Hour)
			}))
		}()
	}
	got := map[string]int{}
	for range runs {
		got[<-answers]++
	}
	k.failIf(got[claimed] != 1 || got[busy] != runs-1, "%d runs at a time got %v, want one claim", runs, got)
}

// A call with an ended context fails as an outage, which costs the message no attempt. IN-07.
func marksHeedTheirContext(k *markKit) {
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	_, begin := k.store.BeginMark(ctx, k.key, "a", time.Hour)
	for what, err := range map[string]error{"BeginMark": begin, "FinishMark": k.store.FinishMark(ctx, k.key, time.Hour)} {
		k.failIf(waybill.ClassOf(err) != waybill.ClassOutage, "%s under an ended context: %w, want an outage", what, err)
	}
}
