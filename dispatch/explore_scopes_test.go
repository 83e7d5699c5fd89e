package dispatch

// The scopes that are explored, and the histories that once broke a promise.

import "time"

// tiny are the bounds of the worlds that are explored.
func tiny() bounds {
	b := usual
	b.keyDepth, b.queueDepth, b.firstCrashWindow, b.tailPages = 1, 1, 2, 0
	b.dueMargin, b.farBack = time.Second, [...]time.Duration{0, 3 * time.Second, 2 * time.Second, time.Second}
	return b
}

// keyed returns a letter of topic t for each key; "" has none.
func keyed(keys ...string) (ls []letter) {
	for _, k := range keys {
		ls = append(ls, letter{route: "r", key: k, topic: "t"})
	}
	return ls
}

// small1 is a world of one member and one route.
func small1(name string, staged []letter, b budget, change ...func(s *scope)) scope {
	s := scope{
		name: name, members: 1, joined: 1, partitions: 1, routes: []Route{{Name: "r"}}, staged: staged, batch: 2, window: 2, keys: 1, bounds: tiny(), budget: b,
		gate: 3000, night: 600_000,
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func manyKeys(s *scope)    { s.keys = 10 }
func cancellable(s *scope) { s.cancellable = true }
func queued(s *scope)      { s.routes[0].Queue = true }
func joins(s *scope)       { s.joined = 1 }
func blocking(s *scope)    { s.routes[0].Blocks = true }
func two(s *scope)         { s.members, s.window = 2, 8 }
func shortPages(s *scope)  { s.batch = 1 }
func twoRoutes(s *scope)   { s.routes = []Route{{Name: "r"}, {Name: "q"}} }

// pair is a world of two members that have joined.
func pair(name string, partitions int, staged []letter, b budget, change ...func(s *scope)) scope {
	return small1(name, staged, b, append([]func(s *scope){func(s *scope) { s.members, s.joined, s.partitions = 2, 2, partitions }}, change...)...)
}

// sent makes the letters of a transaction that stages during the history.
func sent(ls ...letter) func(s *scope) { return func(s *scope) { s.txs = append(s.txs, ls) } }

// ab are letters of two topics: key k has both, l one, and two letters have no key.
var ab = []letter{
	{route: "r", key: "k", topic: "a"}, {route: "r", key: "l", topic: "a"}, {route: "r", key: "k", topic: "b"}, {route: "r", topic: "a"}, {route: "r", topic: "b"},
}

// backlog are letters of topic a, and some of topic t: the head of key k is of topic a.
var backlog = []letter{
	{route: "r", key: "k", topic: "a"}, {route: "r", topic: "a"}, {route: "r", key: "l", topic: "a"}, {route: "r", key: "k", topic: "t"}, {route: "r", key: "m", topic: "t"},
}

var scopes = []scope{
	// at each bound, something that stays
	small1("two of a key at the bound of keys", keyed("k", "k", "l", ""), budget{Ticks: 4, Retry: 2, Lose: 1, Late: 1, Delays: 1}),
	small1("retries at the bound of keys", keyed("k", "l", "", "m"), budget{Ticks: 4, Far: 2}),
	small1("retries of many at the bound of keys", keyed("k", "l", "k", "m", "l"), budget{Ticks: 5, Far: 1, Retry: 2, Delays: 1}, sent(keyed("m", "k")...)),
	small1("blocked keys at the bound of keys", keyed("k", "l", "", "m"), budget{Ticks: 4, Abandon: 2}, blocking),
	small1("blocked keys that go on", keyed("k", "l", "k", "l"), budget{Ticks: 5, Abandon: 2, Redrive: 1, Skip: 1, Delays: 1}, blocking),
	small1("a paused topic at the bound of keys", []letter{
		{route: "r", key: "k", topic: "a"}, {route: "r", key: "l", topic: "a"}, {route: "r", key: "m", topic: "b"}, {route: "r", topic: "b"},
	}, budget{Ticks: 4, Pause: 1}),
	small1("topics pause and open", ab, budget{Ticks: 5, Pause: 2, Retry: 1, Unknown: 1, Delays: 1}),
	small1("a front goes on behind a paused topic", backlog, budget{Ticks: 5, Pause: 1, Retry: 1, Delays: 1}, shortPages, manyKeys, sent(keyed("k", "")...)),
	small1("a front goes on behind a paused topic at the bound of keys", backlog, budget{Ticks: 5, Pause: 2, Delays: 1}, shortPages, sent(keyed("l")...)),
	small1("a topic is paused while its records are out", []letter{{route: "r", key: "k", topic: "a"}, {route: "r", key: "l", topic: "a"}, {route: "r", key: "m", topic: "b"}},
		budget{Ticks: 2, Pause: 1, Unknown: 2}),
	small1("the head of a paused topic is skipped", []letter{{route: "r", key: "k", topic: "a"}, {route: "r", key: "k", topic: "b"}},
		budget{Ticks: 3, Pause: 1, Skip: 1}, manyKeys, cancellable),
	small1("the head of a paused topic is cancelled", []letter{{route: "r", key: "k", topic: "a"}, {route: "r", key: "k", topic: "b"}},
		budget{Ticks: 3, Pause: 1, Cancel: 1}, manyKeys, cancellable),
	small1("the head of a paused topic expires", []letter{
		{route: "r", key: "k", topic: "a", expires: 3 * time.Second}, {route: "r", key: "k", topic: "b"}, {route: "r", topic: "a", expires: 3 * time.Second}, {route: "r", key: "l", topic: "a"},
	}, budget{Ticks: 4, Pause: 1, Delays: 1}, func(s *scope) { s.keys = 2 }),
	small1("cancels in open transactions", keyed("k", "l", "m", ""), budget{Ticks: 4, Cancel: 2}, manyKeys, cancellable),
	small1("cancels at the bound of keys", keyed("k", "k", "l", "m"), budget{Ticks: 4, Cancel: 2, Delays: 1}, cancellable),
	small1("locks in open transactions", keyed("k", "l", "m", ""), budget{Ticks: 4, Lock: 2}, manyKeys),
	small1("many locks", keyed("k", "", "l", "", "m"), budget{Ticks: 2}, manyKeys, func(s *scope) { s.locked = 4 }),
	small1("locks at the bound of keys", keyed("k", "k", "l", ""), budget{Ticks: 4, Lock: 2, Retry: 1, Delays: 1}),
	small1("timers at the bound of keys", []letter{
		{route: "r", key: "k", topic: "t"}, {route: "r", key: "l", topic: "t", delay: time.Second}, {route: "r", topic: "t", delay: 2 * time.Second}, {route: "r", key: "k", topic: "t"},
	}, budget{Ticks: 5, Far: 2, Retry: 1}),
	small1("several pages of what waits", keyed("k", "l", "m", "k", "l", "m", ""), budget{Ticks: 6, Far: 2, Crash: 1}, two, func(s *scope) { s.bounds.waitingPage = 1 }),
	small1("a suspect is locked", keyed("k", "l", "m"), budget{Ticks: 7, Crash: 1, Lock: 1}, two, manyKeys),
	small1("a route is slow after a crash", []letter{
		{route: "r", key: "k", topic: "t"}, {route: "q", key: "l", topic: "t"}, {route: "q", topic: "t"}, {route: "q", key: "m", topic: "t"},
	}, budget{Ticks: 7, Crash: 1, Stuck: 1}, two, twoRoutes, manyKeys),
	small1("answers that come late", keyed("k", ""), budget{Ticks: 4, Retry: 2, Unknown: 1, Slow: 2}, manyKeys),
	small1("an answer that comes late, and one that never comes", keyed("k", ""), budget{Ticks: 5, Retry: 2, Slow: 1, Lose: 1}, manyKeys),
	small1("a time without a store", keyed("k", ""), budget{Ticks: 5, Retry: 2, Blackout: 1}, manyKeys),
	small1("a queue, and answers that come late", keyed("k", "", ""), budget{Ticks: 4, Retry: 1, Far: 1, Slow: 1, Lose: 1}, manyKeys, queued),
	small1("a queue at the bound of keys", keyed("k", "k", "l", ""), budget{Ticks: 4, Retry: 2, Far: 1, Delays: 1}, queued, sent(keyed("l", "")...)),
	// partitions change their owners, while keys are forgotten
	pair("a crash at the bound of keys", 1, keyed("k", "l", "k"), budget{Ticks: 7, Far: 1, Retry: 1, Crash: 1}, sent(keyed("l")...)),
	pair("a move at the bound of keys", 2, keyed("k", "l", "k", "l"), budget{Ticks: 5, Far: 1, Retry: 1, Able: 1, Slow: 1}),
	pair("a late move at the bound of keys", 1, keyed("k", "l", "k"), budget{Ticks: 5, Retry: 1, Able: 1, Late: 1, Delays: 1}),
	pair("a leave at the bound of keys", 2, keyed("k", "l", "k", "l"), budget{Ticks: 5, Far: 1, Leave: 1, Unknown: 1, Slow: 1}),
	pair("a front is behind a paused topic, and its member dies", 1, backlog, budget{Ticks: 7, Pause: 1, Crash: 1}, shortPages),
	pair("a topic is paused, and a member dies", 1, ab, budget{Ticks: 7, Pause: 1, Crash: 1}),
	pair("blocked keys, and a member dies", 1, keyed("k", "l", "k", "l"), budget{Ticks: 7, Abandon: 2, Redrive: 1, Crash: 1}, blocking),
	pair("cancels, and a member dies", 1, keyed("k", "l", "k"), budget{Ticks: 7, Cancel: 1, Crash: 1, Lose: 1}, cancellable),
	pair("a member freezes", 1, keyed("k", "l", "k"), budget{Ticks: 6, Far: 1, Freeze: 1, Blackout: 1}),
	pair("a join is lost, and executed late", 1, keyed("k"), budget{Ticks: 5, Freeze: 1, Late: 1}, joins),
	pair("a join has no answer, and its member leaves", 1, keyed("k"), budget{Ticks: 4, Lose: 1, Late: 1, Leave: 1}, joins),
	pair("a queue, and a member leaves", 2, keyed("k", "", "l", ""), budget{Ticks: 5, Retry: 1, Leave: 1, Slow: 1}, queued),
	pair("a queue, and a member dies", 1, keyed("k", "", ""), budget{Ticks: 6, Retry: 1, Crash: 1, Lock: 1}, queued),
	// transactions that commit late
	small1("late commits at the bound of keys", keyed("k", "l"), budget{Ticks: 4, Retry: 1, Far: 1}, sent(keyed("k", "l")...), sent(keyed("l", "m")...)),
	small1("late commits and delays", keyed("k"), budget{Ticks: 3, Retry: 1, Delays: 2}, sent(keyed("k", "k")...), sent(keyed("l")...), sent(keyed("m")...)),
}

// histories are the shortest that once broke a promise.
var histories = []struct {
	name, in, events string
}{
	{"a join that is executed late revives a removed member", "a join is lost, and executed late", "tick; call m0 heartbeat; call m0 read; call m0 due; out m0 1 published; call m0 settle; " +
		"join m1; late m1 heartbeat; ghost m0 heartbeat; freeze m1; tick; call m0 heartbeat; call m0 read; call m0 due; tick; call m0 heartbeat; call m0 read; call m0 due; tick; " +
		"call m0 heartbeat; call m0 read; call m0 due; tick"},
	{"a key waits for its own retry", "two of a key at the bound of keys", "tick"},
	{"many retries stop a route", "retries at the bound of keys", "tick; call m0 heartbeat; call m0 read; out m0 1 far"},
	{"many blocked keys stop a route", "blocked keys at the bound of keys", "tick; call m0 heartbeat; call m0 read; out m0 1 abandoned"},
	{"a paused topic stops the others", "a paused topic at the bound of keys", "pause a"},
	{"a topic that was paused stops the others for ever", "a paused topic at the bound of keys", "pause b"},
	{"a walk that is being read is not begun again", "topics pause and open", "tick; tick; call m0 heartbeat; call m0 read; pause a; out m0 1 retry; call m0 due; " +
		"call m0 settle; call m0 read; call m0 read; call m0 read; out m0 2 published; call m0 settle; out m0 5 published; call m0 settle; tick; call m0 heartbeat; " +
		"call m0 due; tick; call m0 read; open a; call m0 read; pause a; out m0 4 unknown; open a"},
	{"an earlier record waits for a later one that blocks", "blocked keys that go on", "tick; tick; call m0 heartbeat; call m0 read; out m0 2 abandoned; call m0 due; call m0 settle; skip letter 1; call m0 read; " +
		"call m0 settle; out m0 1 published; call m0 settle; call m0 read; redrive letter 1; out m0 4 abandoned"},
	{"a record that an operator puts back waits for a later one that blocks", "blocked keys that go on", "tick; call m0 heartbeat; call m0 read; call m0 due; out m0 1 abandoned; tick; " +
		"call m0 settle; skip letter 0; call m0 read; call m0 read; call m0 due; call m0 settle; out m0 2 published; call m0 settle; redrive letter 0; call m0 read; " +
		"out m0 3 abandoned"},
	{"a locked record of a forgotten key is forgotten", "cancels, and a member dies", "crash m1; tick; call m0 heartbeat; call m0 read; cancel letter 0; call m0 hold; " +
		"rollback 0; lost m0 read"},
	{"two keys are asked about in turn", "retries of many at the bound of keys", "tx 0; tick; call m0 read; out m0 2 retry; out m0 1 retry"},
	{"a key waits for a topic whose record was skipped", "the head of a paused topic is skipped", "pause a; skip letter 0; tick"},
	{"cancelled records stop a route", "cancels in open transactions", "cancel letter 0; cancel letter 1"},
	{"locked records stop a route", "locks in open transactions", "lock letter 0; lock letter 1"},
	{"a locked suspect stops the member", "a suspect is locked", "crash m0; lock letter 0"},
	{"a retry is held, and its settle is answered later", "answers that come late", "tick; call m0 heartbeat; call m0 read; call m0 due; out m0 2 published; call m0 settle; " +
		"out m0 1 retry; slow m0 settle; tick; slow m0 due; call m0 due"},
	{"a slow route stops another after a crash", "a route is slow after a crash", "crash m0; join m1; call m1 heartbeat; tick; call m1 heartbeat; tick; call m1 heartbeat; tick; " +
		"call m1 heartbeat; call m1 heartbeat; call m1 heartbeat; call m1 read; call m1 read; call m1 read; call m1 hold; out m1 1 stuck"},
	{"a key is read again and again while a late scan takes several pages", "a front goes on behind a paused topic at the bound of keys", "tx 0; tick; call m0 read; pause t; pause a"},
	{"an outcome that waits for a lock keeps the next crash window waiting", "a suspect is locked", "tick; crash m0; tick; tick; tick; join m1; call m1 heartbeat; tick; call m1 heartbeat; tick; call m1 heartbeat; tick; call m1 heartbeat; " +
		"call m1 heartbeat; call m1 heartbeat; call m1 read; call m1 read; call m1 read; call m1 hold; lock letter 0"},
}
