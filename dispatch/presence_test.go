package dispatch

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// seer is a store that knows whose token is there.
type seer struct {
	*memory.Store
	gone map[int64]bool
}

func (s *seer) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	r, err := s.Store.Heartbeat(ctx, m)
	for i := range r.Members {
		r.Members[i].PresenceLost = r.Members[i].Presence != 0 && s.gone[r.Members[i].Presence]
	}
	return r, err
}

// watched is a world in which the dispatcher shows token 7, and session 1 token 9.
func newWatched(t *testing.T) (*small, *seer) {
	t.Helper()
	w := newSmall(t)
	s := &seer{w.st, map[int64]bool{}}
	w.call = func(c *Call) { c.Do(context.Background(), s) }
	w.start()
	w.d.opts.Lease = time.Minute
	w.d.SetPresence(7)
	w.renew(1, 1, 9)
	w.run(50 * time.Millisecond)
	return w, s
}

// renew has a session join or renew, and show a token.
func (w *small) renew(s core.Session, heartbeats, token int64) {
	w.t.Helper()
	_, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{
		Self: core.Member{Session: s, Heartbeats: heartbeats, Presence: token, Lease: time.Minute, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1, Unavailable: true}}}, Join: true,
	})
	w.must(err)
}

// there reports whether a session is a member.
func (w *small) there(s core.Session) bool {
	r, err := w.st.Heartbeat(w.t.Context(), core.HeartbeatRequest{})
	w.must(err)
	return slices.ContainsFunc(r.Members, func(m core.Member) bool { return m.Session == s })
}

func TestKilledMemberIsRemoved(t *testing.T) { // DB-24
	t.Parallel()
	w, s := newWatched(t)
	s.gone[9] = true
	if w.run(400 * time.Millisecond); !w.there(1) {
		t.Error("removed before the grace was over")
	}
	if w.run(1600 * time.Millisecond); w.there(1) {
		t.Error("still there after two seconds")
	}
}

// A relay that was killed and started again does not wait for the lease of its former self, whose token it never saw.
func TestNewcomerRemovesWhoWasKilled(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	s := &seer{w.st, map[int64]bool{9: true}}
	w.renew(1, 1, 9)
	w.call = func(c *Call) { c.Do(context.Background(), s) }
	w.start()
	w.d.opts.Lease = time.Minute
	w.run(50 * time.Millisecond) // it joins before it has a token
	w.d.SetPresence(7)
	if w.run(400 * time.Millisecond); !w.there(1) {
		t.Error("removed before the grace was over")
	}
	if w.run(1600 * time.Millisecond); w.there(1) {
		t.Error("still there after two seconds")
	}
}

// A suspected member cannot say anything while the store is away; it has the grace once more after that.
func TestGraceBeginsAgainAfterAnOutage(t *testing.T) { // DB-24
	t.Parallel()
	w, s := newWatched(t)
	ctx, away := context.WithCancel(context.Background())
	defer away()
	met := 0
	w.call = func(c *Call) {
		if c.Do(ctx, s); c.kind == CallHeartbeat && c.err == nil {
			met++
		}
	}
	s.gone[9] = true
	flagged := func() bool {
		r, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{})
		w.must(err)
		return slices.ContainsFunc(r.Members, func(m core.Member) bool { return m.Session == 1 && m.Suspected })
	}
	for range 200 {
		if flagged() {
			break
		}
		w.run(10 * time.Millisecond)
	}
	w.run(100 * time.Millisecond)
	away()
	w.run(3 * time.Second)
	ctx, met = context.Background(), 0
	for met == 0 {
		w.run(time.Millisecond)
	}
	if w.run(400 * time.Millisecond); !flagged() {
		t.Error("removed, or not flagged, before it could say anything")
	}
	if w.run(5 * time.Second); w.there(1) {
		t.Error("still there five seconds later")
	}
}

func TestWhoOnlyLostItsConnectionStays(t *testing.T) { // DB-24
	t.Parallel()
	w, s := newWatched(t)
	for i := range int64(20) { // it is suspected now and then, and says something each time
		s.gone[9+i] = true
		w.run(400 * time.Millisecond)
		w.renew(1, 2*i+2, 0)
		w.run(100 * time.Millisecond)
		w.renew(1, 2*i+3, 10+i)
		w.run(200 * time.Millisecond)
	}
	if !w.there(1) {
		t.Error("it was removed")
	}
}

func TestServerThatRestartedHasLostAllTokens(t *testing.T) { // DB-24
	t.Parallel()
	w, s := newWatched(t)
	s.gone[7], s.gone[9] = true, true
	w.run(time.Second)
	w.d.SetPresence(8)
	if w.run(20 * time.Second); !w.there(1) {
		t.Error("it was removed, although nobody has seen its token since the restart")
	}
}

// TestWhoIsFlaggedStartsNothing: neither when it is told, nor when it could not be told.
func TestWhoIsFlaggedStartsNothing(t *testing.T) { // DB-24
	t.Parallel()
	w, _ := newWatched(t)
	w.stage("", "a")
	w.d.Wake(w.now)
	for w.d.Ready("r") == 0 {
		w.step()
	}
	w.now = w.now.Add(grace) // it stands still
	if got := w.d.HandOut(w.now, "r", 10); len(got) != 0 {
		t.Error("it started something without having asked the store")
	}
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 5, Presence: 9}, Suspect: []core.Suspicion{{Session: 100, Presence: 7}}})
	w.must(err)
	w.step()
	if got := w.d.HandOut(w.now, "r", 10); len(got) != 0 || w.d.Presence() != 0 || !w.d.StartBy().IsZero() {
		t.Error("it started something although it was flagged")
	}
	if got := w.run(50 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out %v after it has beaten without a token, want a", got)
	}
}

// TestWhoIsRemovedStartsNothing: the answer to its settle does not tell a member that it was suspected and removed.
func TestWhoIsRemovedStartsNothing(t *testing.T) { // DB-24
	t.Parallel()
	w, _ := newWatched(t)
	w.stage("", "a", "b")
	w.d.Wake(w.now)
	for w.d.Ready("r") < 2 {
		w.step()
	}
	out := w.d.HandOut(w.now, "r", 1)
	w.now = w.now.Add(grace) // it stands still
	_, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 5, Presence: 9}, Evict: []core.Eviction{{Session: 100, Heartbeats: w.d.self.heartbeats}}})
	w.must(err)
	if w.there(100) {
		t.Fatal("it was not removed")
	}
	w.d.Conclude(w.now, out[0], core.Published(&out[0].Record))
	settled := false
	for range 100 {
		w.now = w.now.Add(time.Millisecond)
		for _, c := range w.d.Calls(w.now) {
			if c.kind == CallSettle { // the answers to the others are late
				settled = true
				w.call(c)
				w.d.Done(w.now, c)
			}
		}
	}
	if got := w.d.HandOut(w.now, "r", 10); !settled || len(got) != 0 {
		t.Errorf("settled: %t; it started %d", settled, len(got))
	}
}

// TestSlowStoreStopsNobody: a member whose renewals take longer than the grace would start nothing while it shows a
// token. It goes by its lease instead, until the store is quick again.
func TestSlowStoreStopsNobody(t *testing.T) { // DB-24
	t.Parallel()
	w, _ := newWatched(t)
	shown := func() int64 {
		r, err := w.st.Heartbeat(t.Context(), core.HeartbeatRequest{})
		w.must(err)
		for _, m := range r.Members {
			if m.Session == 100 {
				return m.Presence
			}
		}
		return -1
	}
	if token := shown(); token != 7 {
		t.Fatalf("it shows %d, want 7", token)
	}
	w.stage("", "a", "b", "c")
	w.d.Wake(w.now)
	type answer struct {
		at time.Time
		c  *Call
	}
	var answers []answer
	var got []string
	for end := w.now.Add(5 * time.Second); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		for _, c := range w.d.Calls(w.now) {
			w.call(c)
			answers = append(answers, answer{w.now.Add(grace + 100*time.Millisecond), c})
		}
		for len(answers) > 0 && !answers[0].at.After(w.now) {
			w.d.Done(w.now, answers[0].c)
			answers = answers[1:]
		}
		for _, item := range w.d.HandOut(w.now, "r", 10) {
			got = append(got, item.Record.Envelope.ID)
		}
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(got, want) || shown() != 0 {
		t.Errorf("handed out %v, want %v; it shows %d, want none", got, want, shown())
	}
	for _, o := range answers {
		w.d.Done(w.now, o.c)
	}
	if w.run(time.Minute / 2); shown() != 7 {
		t.Errorf("it shows %d although the store is quick again, want 7", shown())
	}
}

// TestTokenIsShownSoonAfterASlowHeartbeat: a member waits seconds, not a third of its lease, until it shows its token
// once more. While its store stays slow, it asks ever less often.
func TestTokenIsShownSoonAfterASlowHeartbeat(t *testing.T) { // DB-24
	t.Parallel()
	w := newSmall(t)
	w.start()
	w.d.opts.Lease = time.Hour
	slow, heartbeats := true, 0
	w.call = func(c *Call) {
		c.Do(context.Background(), w.st)
		if c.kind == CallHeartbeat {
			if heartbeats++; slow {
				w.now = w.now.Add(slowHeartbeat)
			}
		}
	}
	shows := func(want int64) {
		t.Helper()
		if got := w.membership().Members[0].Presence; got != want {
			t.Errorf("it shows %d, want %d", got, want)
		}
	}
	pass := func(d time.Duration) {
		t.Helper()
		calls := 0
		for end := w.now.Add(d); w.now.Before(end); w.now = later(w.now.Add(time.Millisecond), w.d.Next()) {
			for _, c := range w.d.Calls(w.now) {
				w.call(c)
				w.d.Done(w.now, c)
			}
			if calls++; calls > 100_000 {
				t.Fatal("it calls its store in a loop")
			}
		}
	}

	w.step() // it joins slowly
	slow = false
	w.d.SetPresence(7)
	pass(5 * time.Second)
	shows(7)

	slow, heartbeats = true, 0
	w.d.SetAble("r", false) // a renewal
	for heartbeats == 0 {
		w.step()
	}
	slow = false
	pass(100 * time.Millisecond)
	shows(0)
	pass(5 * time.Second)
	shows(7)

	pass(time.Minute) // no activity is left
	slow, heartbeats = true, 0
	w.d.SetAble("r", true)
	pass(time.Hour)
	shows(0)
	if heartbeats < 10 || heartbeats > 20 {
		t.Errorf("it made %d Heartbeats in an hour of slow ones, want about 15: at 1, 2, 4 ... 1,024 s, and three renewals", heartbeats)
	}
	slow, heartbeats = false, 0
	pass(time.Hour / 2)
	shows(7)
	if heartbeats > 5 {
		t.Errorf("it made %d Heartbeats in half an hour of quick ones, want about 3", heartbeats)
	}
}

// A member tells with each renewal how many records of each route are out, and for how long the oldest has been.
func TestHeartbeatTellsWhatIsOut(t *testing.T) {
	t.Parallel()
	w := newSmall(t)
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1}, {Name: "idle", Partitions: 1}}, Lease: 3 * time.Second,
		NewSession: func() core.Session { return 100 },
	})
	w.stage("", "a")
	w.run(5 * time.Second)
	w.stage("", "b")
	w.run(5 * time.Second)
	served := w.membership().Members[0].Routes
	if served[0].Route != "r" || served[0].HandedOut != 2 {
		t.Fatalf("two records are out, and the membership says %+v", served)
	}
	if served[0].OldestHandedOut < 8*time.Second || served[0].OldestHandedOut > 10*time.Second {
		t.Errorf("the oldest has been out for 10 s, of which the latest second can be missing: the membership says %v", served[0].OldestHandedOut)
	}
	if served[1] != (core.ServedRoute{Route: "idle", InitialPartitions: 1}) {
		t.Errorf("nothing of route idle is out, and the membership says %+v", served[1])
	}
}
