package checker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// Ref names a message on a route.
type Ref struct{ Route, ID string }

// Rule is what a route promises.
type Rule struct{ PerKey, Block bool }

// Options configures a Ledger.
type Options struct {
	// Routes are the routes of the history.
	Routes map[string]Rule
	// Now is the store's clock.
	Now func() time.Time
	// Exact makes calls of the store run one at a time, so that positions are exact, and it is known who owns what.
	Exact bool
	// Zombies says that copies of a message may arrive long after their relay gave them up, so that one that was
	// given up or cancelled may still arrive, out of order.
	Zombies bool
	// Unseen says that some relays are not decorated, so that the broker's refusals to them are unknown.
	Unseen bool
	// TimersStay says that a scheduled message may keep its first number when it is due, so that the numbers of two
	// do not tell which of them was due first.
	TimersStay bool
	// Limit is the time within which a due and free record is handed out when everything works; zero = not judged.
	// It needs an exact ledger.
	Limit time.Duration
}

// Ledger keeps the events of one history.
type Ledger struct {
	opts Options
	late sync.WaitGroup
	over bool // nothing may happen late any more

	mu       sync.Mutex
	pos      int
	txs      int
	msgs     map[Ref]*message
	arrivals []Arrival
	problems []string
	trace    []line

	crew    crew
	waiting waiting
}

// Arrival is one arrival at the queue.
type Arrival struct {
	Ref
	Key, Body string
	pos       int
}

type fate uint8

const (
	open fate = iota
	committed
	rolledBack
	unknown
)

type message struct {
	Ref
	key, body    string
	tx, at       int // its transaction, and its place in it
	began, ended int // positions
	fate         fate
	scheduled    bool
	due          time.Time // at the earliest
	mayExpire    bool
	seq          int64 // when it was first read
	seen         int   // and the position then
	last         int64 // its latest number
	anew         bool  // it was staged again since, and has a number that nobody has read
	version      int64 // the latest of that
	hold         hold
	flying       map[*Process]int // publishes under way
	free         time.Time        // nothing held it from then on
	refusals     int
	unroutable   bool
	givenUp      []giving
	forced       bool
	cancelled    []cancellation
	ordered      bool // an operator has ordered it out
	decided      bool // and its owner has taken it out
	first        int  // its first arrival: an index, from 1
	invented     bool // seen before its transaction was known to have ended
}

// giving is a time for which a message was abandoned.
type giving struct {
	reason   waybill.Reason
	from, to int // positions; to 0 = for good
}

type cancellation struct {
	status waybill.CancelStatus
	pos    int
	sure   bool // its transaction was committed for sure
}

// NewLedger returns an empty ledger.
func NewLedger(opts Options) *Ledger {
	return &Ledger{opts: opts, msgs: map[Ref]*message{}, crew: newCrew(), waiting: waiting{keys: map[[2]string]time.Time{}, paused: map[string]time.Time{}}}
}

func (l *Ledger) problem(format string, a ...any) {
	if len(l.problems) < 20 {
		l.problems = append(l.problems, fmt.Sprintf("at %d: ", l.pos)+fmt.Sprintf(format, a...))
	}
}

// Problem notes that something is wrong.
func (l *Ledger) Problem(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problem(format, a...)
}

// line is an entry for a reader of the history. It is formatted when it is read.
type line struct {
	pos    int
	at     time.Time
	format string
	args   []any
}

func (l *line) String() string {
	return fmt.Sprintf("%4d %s ", l.pos, l.at.Format("04:05.000")) + fmt.Sprintf(l.format, l.args...)
}

// note moves on by one position and keeps a line.
func (l *Ledger) note(format string, args ...any) {
	l.pos++
	l.trace = append(l.trace, line{l.pos, l.opts.Now(), format, args})
}

// Note keeps a line in the history.
func (l *Ledger) Note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(format, a...)
}

// Trace returns the lines that name one of words; all lines without words.
func (l *Ledger) Trace(words ...string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for i := range l.trace {
		text := l.trace[i].String()
		if len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) }) {
			b.WriteString(text + "\n")
		}
	}
	return b.String()
}

// Do makes one call of the store and then notes what came of it.
func (l *Ledger) Do(call, note func()) {
	if !l.opts.Exact {
		call()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opts.Exact {
		call()
	}
	note()
}

// later runs fn beside its caller. After Wait it never happens, which is as good a fault.
func (l *Ledger) later(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.late.Go(fn)
	}
}

// Wait waits for calls that happen late. It ends the history: from now on there are none.
func (l *Ledger) Wait() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.late.Wait()
}

// get returns the ledger's entry of a message. One that was never staged is invented, as rolled back.
func (l *Ledger) get(r Ref) *message {
	m := l.msgs[r]
	if m == nil {
		m = &message{Ref: r, fate: rolledBack, invented: true}
		l.msgs[r] = m
	}
	return m
}

// Refused notes that the broker refused a message with err, which costs an attempt.
func (l *Ledger) Refused(route, id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.get(Ref{route, id})
	m.refusals++
	m.unroutable = m.unroutable || errors.Is(err, waybill.ErrUnroutable)
	l.note("refused %s/%s: %v", route, id, err)
}

// Arrived notes that a message stands in the queue.
func (l *Ledger) Arrived(route string, e *waybill.Envelope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.get(Ref{route, e.ID})
	l.note("arrived %s/%s", route, e.ID)
	l.arrivals = append(l.arrivals, Arrival{Ref: m.Ref, Key: e.Key, Body: string(e.Body), pos: l.pos})
	if l.opts.Exact && l.opts.Now().Before(m.due) {
		l.problem("early: %s/%s arrived %s before it was due", m.Route, m.ID, m.due.Sub(l.opts.Now()))
	}
	if l.opts.Exact && !l.opts.Zombies && m.decided {
		l.problem("cancelled: %s/%s arrived after its owner had cancelled it", m.Route, m.ID)
	}
	if m.first == 0 {
		m.first = len(l.arrivals)
		if l.opts.Exact && !l.opts.Zombies && l.opts.Routes[route].Block && m.key != "" {
			l.passed(m, "published")
		}
	}
}
