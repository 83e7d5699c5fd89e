package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxes"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/obs"
	"github.com/waybill-go/waybill/internal/upkeep"
)

// A fleet looks at the numbers that all outboxes have drawn, and visits an outbox for a reason:
//
//   a number was drawn since the visit before     a transaction that had drawn one has ended
//   a timer or a retry is due                     the latest visit is an hour ago; that visit cleans, too
//
// A visit takes one of the places. It asks what waits (Peek). If there is work, and no other process serves the outbox,
// a relay runs until it has been idle for Linger, and the outbox is visited again at once, to see what it has left.
// Otherwise the outbox is cold: the fleet keeps the numbers from before the Peek, and the transactions that were open.
//
// Outboxes that want a visit wait in line. While some do, a relay ends as soon as it is idle, or after placeTime with
// work; then its outbox goes to the end of the line.

// Defaults of FleetOptions.
const (
	DefaultActive = 8
	DefaultLinger = 5 * time.Second
)

const (
	maxActive = 1000
	// lookEvery is how often a fleet looks at all outboxes, and pageEvery how often it asks for a page at most.
	lookEvery = 500 * time.Millisecond
	pageEvery = 50 * time.Millisecond
	// fleetLook bounds a Look, and fleetPeek a Peek. Without a Look for fleetStale the fleet is not ready.
	fleetLook  = 10 * time.Second
	fleetPeek  = 15 * time.Second
	fleetStale = 30 * time.Second
	// visitEvery is how often each outbox is visited without a reason.
	visitEvery = time.Hour
	// placeTime is how long a relay with work keeps its place while outboxes wait in line.
	placeTime = 5 * time.Second
	// servedEvery is when to look again at an outbox that another process serves.
	servedEvery = 5 * time.Second
	// A visit that failed, or whose relay handed nothing out, is repeated after a pause that doubles between these.
	visitFirst = time.Second
	visitLast  = time.Minute
	// namedOutboxes is how many failing outboxes Health names.
	namedOutboxes = 5
)

// FleetOptions configures a Fleet beside the Options of its relays. Zero fields mean their defaults.
type FleetOptions struct {
	// Active is how many relays run at once; default 8, at most 1,000.
	Active int
	// Linger is how long a relay goes on after its last message, if no other outbox waits for its place; default 5
	// s.
	Linger time.Duration
}

// Fleet relays from many outboxes of one database, of which most are idle. A relay runs only where there is something
// to do; an idle outbox costs a part of a statement. Make one with NewFleet.
type Fleet struct {
	all       outboxes.All
	publisher core.Publisher
	opts      Options
	fleet     FleetOptions
	like      *Relay // has the pauses of all
	routes    []string
	log       *obs.Logger
	running   atomic.Bool

	mu     sync.Mutex
	relays map[string]*Relay // those that run
	state  fleetState
}

// fleetState is what Health tells.
type fleetState struct {
	began, looked    time.Time
	lookErr          string
	outboxes, active int
	waiting          int
	failing          map[string]string
}

// NewFleet returns a fleet. Each of its relays has opts and publisher; see [New]. All of them have one name in the
// metrics: the fleet has a bounded number of labels.
func NewFleet(all outboxes.All, publisher core.Publisher, opts Options, fleet FleetOptions) (*Fleet, error) {
	var problems []string
	if check.Nil(all) {
		problems = append(problems, "outboxes: is nil; give the outboxes of a database")
	}
	setInt(&fleet.Active, DefaultActive)
	setInt(&fleet.Linger, DefaultLinger)
	if fleet.Active < 0 || fleet.Active > maxActive {
		problems = append(problems, fmt.Sprintf("Active: is %d; must be from 1 to %d", fleet.Active, maxActive))
	}
	if fleet.Linger < minDuration || fleet.Linger > maxDuration {
		problems = append(problems, fmt.Sprintf("Linger: is %s; must be from %s to %s", fleet.Linger, minDuration, maxDuration))
	}
	like, err := New(struct{ core.OutboxStore }{}, publisher, opts)
	if e := new(waybill.InvalidError); errors.As(err, &e) {
		problems = append(problems, e.Problems...)
	} else if err != nil {
		return nil, err
	}
	if err := waybill.Invalid("waybill/relay: fleet options", problems...); err != nil {
		return nil, err
	}
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	f := &Fleet{
		all: all, publisher: publisher, opts: opts, fleet: fleet,
		log:  obs.NewLogger(opts.Logger).With("fleet", cmp.Or(opts.Name, "fleet")),
		like: like, relays: map[string]*Relay{},
	}
	for i := range like.routes {
		f.routes = append(f.routes, like.routes[i].Name)
	}
	return f, nil
}

// visited is one outbox, as the fleet knows it.
type visited struct {
	name         string
	drawn, known outboxes.Drawn // as of the latest Look, and before the latest Peek
	openBefore   int64          // one of these transactions may show a known number; 0 = none
	again        bool           // it is to be visited at once
	dueAt        time.Time      // of a timer, a retry or another look; zero = never
	cleanAt      time.Time
	notBefore    time.Time // after a failure
	fails        int       // visits in a row that failed or did nothing
	round        int       // of the latest Look
	place        *place    // the visit under way
	inLine       bool
}

// place is a visit under way.
type place struct {
	cancel  context.CancelFunc
	since   time.Time
	resting atomic.Bool
	ended   bool
}

// visit is the result of a visit.
type visit struct {
	state  outboxes.State
	before outboxes.Drawn
	ran    bool // a relay ran
	handed int  // records that it has handed out
	clean  bool // the outbox was cleaned
	cut    bool // the cleaning has ended with the place
	err    error
}

// Run relays until ctx ends, then drains all relays and returns nil. No outbox that fails ends it: Health and the log
// name it. It returns an error only if publishers are misconfigured at the start (matching waybill.ErrMisconfigured),
// or if the fleet is running already.
func (f *Fleet) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("waybill/relay: the fleet is already running")
	}
	defer f.running.Store(false)
	if err := f.like.check(ctx); err != nil {
		return err
	}
	r := &fleetRun{
		Fleet: f, ctx: ctx, outboxes: map[string]*visited{}, seated: map[*visited]bool{}, looks: make(chan look), done: make(chan func()), failing: map[string]string{},
	}
	f.mu.Lock()
	f.state = fleetState{began: time.Now()}
	f.mu.Unlock()
	f.log.Info("fleet started", "event", "fleet.start", "routes", f.routes)
	r.loop()
	f.log.Info("fleet stopped", "event", "fleet.stop", "outboxes", len(r.outboxes))
	return nil
}

// fleetRun is one Run. The loop goroutine owns everything in it.
type fleetRun struct {
	*Fleet
	ctx      context.Context //nolint:containedctx // of Run
	outboxes map[string]*visited
	line     []*visited
	seated   map[*visited]bool
	looks    chan look
	done     chan func()
	failing  map[string]string
	lookErr  string
	looked   time.Time
	round    int
}

// look is one page, or the error of one.
type look struct {
	outboxes.Page
	first bool
	err   error
}

// loop takes in looks and the ends of visits until ctx has ended and all visits have.
func (r *fleetRun) loop() {
	var looker sync.WaitGroup
	looker.Go(r.lookOn)
	defer looker.Wait()
	stopped := r.ctx.Done()
	for stopped != nil || len(r.seated) > 0 {
		select {
		case <-stopped:
			stopped = nil // the contexts of the visits have ended, too
		case l := <-r.looks:
			r.take(&l)
		case then := <-r.done:
			then()
		}
		if stopped != nil {
			r.seat()
		}
		r.tell()
	}
}

// lookOn looks at page after page until ctx ends.
func (r *fleetRun) lookOn() {
	after, began := "", time.Now()
	for {
		ctx, cancel := context.WithTimeout(r.ctx, fleetLook)
		l := look{first: after == ""}
		l.err = guardErr("look", func() (err error) {
			l.Page, err = r.all.Look(ctx, after)
			return err
		})
		cancel()
		select {
		case r.looks <- l:
		case <-r.ctx.Done():
			return
		}
		pause := pageEvery
		if n := len(l.Outboxes); l.err == nil && l.More && n > 0 {
			after = l.Outboxes[n-1].Name
		} else {
			after = ""
			pause = max(pause, lookEvery-time.Since(began))
		}
		select {
		case <-time.After(pause):
		case <-r.ctx.Done():
			return
		}
		if after == "" {
			began = time.Now()
		}
	}
}

// take takes in a page: the outboxes that want a visit stand in line.
func (r *fleetRun) take(l *look) {
	if l.err != nil {
		if r.ctx.Err() == nil {
			r.lookErr = core.ErrorText(l.err)
			r.log.Event(r.ctx, slog.LevelWarn, "fleet.look_failed", "the outboxes cannot be looked at; trying on", slog.String("error", r.lookErr))
		}
		return
	}
	now := time.Now()
	if r.lookErr = ""; l.first {
		r.round++
	}
	r.looked = now
	for _, d := range l.Outboxes {
		o := r.outboxes[d.Name]
		if o == nil {
			o = &visited{name: d.Name, again: true, cleanAt: now.Add(chance.N(visitEvery))}
			r.outboxes[d.Name] = o
		}
		o.again = o.again || o.drawn.Refused != "" && d.Refused == ""
		o.drawn, o.round = d, r.round
		if d.Refused != "" {
			r.fail(o, d.Refused)
			if o.place != nil && !o.place.ended {
				o.place.end()
			}
			continue
		}
		if o.place == nil && !o.inLine && o.wants(now, l.Xmin) {
			r.join(o)
		}
	}
	if !l.More {
		r.forget()
	}
}

// forget forgets the outboxes that are gone, at the end of a round that has met all others. A relay that serves one
// ends.
func (r *fleetRun) forget() {
	for name, o := range r.outboxes {
		switch {
		case o.round == r.round || o.inLine:
		case o.place == nil:
			delete(r.outboxes, name)
			delete(r.failing, name)
		case !o.place.ended:
			o.place.end()
		}
	}
}

// wants reports whether the outbox is to be visited.
func (o *visited) wants(now time.Time, xmin int64) bool {
	switch {
	case now.Before(o.notBefore):
		return false
	case o.again, o.drawn != o.known, o.openBefore != 0 && xmin >= o.openBefore:
		return true
	}
	return !o.dueAt.IsZero() && !now.Before(o.dueAt) || !now.Before(o.cleanAt)
}

func (r *fleetRun) join(o *visited) {
	o.inLine = true
	r.line = append(r.line, o)
}

// seat gives free places to those in line. If there are too few, relays that are idle end, and then those that have had
// their place for long.
func (r *fleetRun) seat() {
	now := time.Now()
	for len(r.seated) < r.fleet.Active && len(r.line) > 0 {
		o := r.line[0]
		r.line = r.line[1:]
		o.inLine = false
		r.begin(o, now)
	}
	if len(r.line) == 0 {
		return
	}
	wanted := len(r.line)
	var long []*place
	for o := range r.seated {
		switch p := o.place; {
		case p.ended:
			wanted--
		case p.resting.Load():
			p.end()
			wanted--
		case now.Sub(p.since) >= placeTime:
			long = append(long, p)
		}
	}
	slices.SortFunc(long, func(a, b *place) int { return a.since.Compare(b.since) })
	for _, p := range long[:min(max(wanted, 0), len(long))] {
		p.end()
	}
}

func (p *place) end() {
	p.ended = true
	p.cancel()
}

// begin begins a visit.
func (r *fleetRun) begin(o *visited, now time.Time) {
	ctx, cancel := context.WithCancel(r.ctx)
	p := &place{cancel: cancel, since: now}
	o.place, o.again, r.seated[o] = p, false, true
	name, before, clean, linger := o.name, o.drawn, !now.Before(o.cleanAt) && r.opts.CleanInterval >= 0, r.fleet.Linger
	if len(r.line) > r.fleet.Active-len(r.seated) { // an outbox waits for the place
		linger = 0
	}
	go func() {
		defer cancel()
		v := r.visit(ctx, name, clean, linger, p)
		v.before = before
		r.done <- func() { r.ended(o, &v) }
	}()
}

// visit is a visit of an outbox.
func (r *fleetRun) visit(ctx context.Context, name string, clean bool, linger time.Duration, p *place) (v visit) {
	peek, cancel := context.WithTimeout(ctx, fleetPeek)
	v.err = guardErr("peek", func() (err error) {
		v.state, err = r.all.Peek(peek, name, r.routes)
		return err
	})
	cancel()
	if v.err != nil || v.state.Served || !v.state.Work && !clean {
		return v
	}
	store, err := r.all.Open(name)
	if err != nil {
		v.err = err
		return v
	}
	if clean {
		v.clean = true
		switch v.err = r.clean(ctx, name, store); {
		case ctx.Err() != nil:
			v.cut, v.err = true, nil
			return v
		case v.err != nil:
			return v
		}
	}
	if !v.state.Work {
		return v
	}
	v.ran = true
	v.handed, v.err = r.relay(ctx, name, store, linger, p)
	return v
}

// relay runs the relay of an outbox.
func (r *fleetRun) relay(ctx context.Context, name string, store core.OutboxStore, linger time.Duration, p *place) (handed int, err error) {
	opts := r.opts
	opts.Logger = r.opts.Logger.With("outbox", name)
	one, err := New(store, r.publisher, opts)
	if err != nil {
		return 0, err
	}
	one.checked = true
	r.mu.Lock()
	r.like.mu.Lock()
	maps.Copy(one.paused, r.like.paused)
	r.like.mu.Unlock()
	r.relays[name] = one
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.relays, name)
	}()
	counts, err := one.runUntilIdle(ctx, linger, p.resting.Store)
	return counts.HandedOut, err
}

// clean cleans an outbox, until there is nothing more to do.
func (r *fleetRun) clean(ctx context.Context, name string, store core.OutboxStore) error {
	cleaner, ok := core.As[core.Cleaner](store)
	if !ok {
		return nil
	}
	var round upkeep.Round
	defer round.End(ctx, r.log.Logger.With("outbox", name), slog.String("event", "fleet.clean"))
	for {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, upkeep.Timeout)
		var done core.Cleaned
		err := guardErr("clean", func() (err error) {
			done, err = cleaner.Clean(call, "fleet "+waybill.NewID(), upkeep.Lease(0))
			return err
		})
		cancel()
		round.Add(&done)
		if err != nil || !done.Leader || !done.More {
			return err
		}
		select {
		case <-time.After(upkeep.Rest(time.Since(began))):
		case <-ctx.Done():
			return nil
		}
	}
}

// ended takes in a visit. An outbox whose relay has handed something out is visited again, behind those in line. One
// that has lost its place without that is put off, or outboxes that cannot go on would keep all places from the others.
func (r *fleetRun) ended(o *visited, v *visit) {
	now := time.Now()
	since, stopped := o.place.since, o.place.ended
	o.place = nil
	delete(r.seated, o)
	if v.clean {
		o.cleanAt = now.Add(jitter(visitEvery))
	}
	if v.cut { // it goes on soon, but a relay goes first
		o.cleanAt = now.Add(jitter(visitLast))
	}
	switch {
	case r.ctx.Err() != nil, o.drawn.Refused != "":
		return
	case v.cut, v.handed > 0 && (stopped || v.err == nil):
		o.fails = 0
		o.again = true
		r.join(o)
	case v.err != nil:
		o.again = true
		o.notBefore = o.putOff(now)
		text := core.ErrorText(v.err)
		if stopped && errors.Is(v.err, context.Canceled) {
			text = fmt.Sprintf("it did not answer for %s, and others waited for its place", round(now.Sub(since)))
		}
		r.fail(o, text)
		return
	case v.ran: // what it has is not to be handed out now; a new number is a reason at once
		o.cold(now, v)
		o.dueAt = o.putOff(now)
	case v.state.Served:
		o.cold(now, v)
		o.notBefore = now.Add(servedEvery)
		o.dueAt = o.notBefore
	default:
		o.fails = 0
		o.cold(now, v)
	}
	delete(r.failing, o.name)
}

// fail notes why an outbox cannot be served.
func (r *fleetRun) fail(o *visited, text string) {
	if r.failing[o.name] == "" {
		r.log.Event(r.ctx, slog.LevelWarn, "fleet.outbox_failed", "an outbox cannot be served; the others go on",
			slog.String("outbox", o.name), slog.String("error", text))
	}
	r.failing[o.name] = text
}

// cold notes what a visit has seen, for the time until the next one. A transaction that has drawn one of the numbers
// from before the Peek is one before its Xmax. If the numbers are the same as at the Peek before, it is one before the
// Xmax of that one.
func (o *visited) cold(now time.Time, v *visit) {
	if v.before != o.known {
		o.openBefore = v.state.Xmax
	}
	if v.state.Xmin >= o.openBefore {
		o.openBefore = 0
	}
	o.known, o.dueAt, o.notBefore = v.before, time.Time{}, time.Time{}
	if v.state.NextIn >= 0 {
		o.dueAt = now.Add(v.state.NextIn)
	}
	if !now.Before(o.cleanAt) {
		o.cleanAt = now.Add(jitter(visitEvery))
	}
}

// putOff returns when to visit the outbox again, later each time.
func (o *visited) putOff(now time.Time) time.Time {
	o.fails++
	return now.Add(jitter(min(visitFirst<<min(o.fails-1, 10), visitLast)))
}

// tell tells Health.
func (r *fleetRun) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.state
	s.looked, s.lookErr, s.outboxes, s.active, s.waiting = r.looked, r.lookErr, len(r.outboxes), len(r.seated), len(r.line)
	if len(s.failing) > 0 || len(r.failing) > 0 {
		s.failing = maps.Clone(r.failing)
	}
}

// Health says how the fleet is. The checks are "run", "look", "relays" while a relay that runs is hindered, by its
// broker for instance, and "outboxes" while some cannot be served. Ready is true if the outboxes were looked at a
// moment ago. It asks nothing of the database.
func (f *Fleet) Health(ctx context.Context) waybill.Health {
	f.mu.Lock()
	s, relays := f.state, maps.Clone(f.relays)
	f.mu.Unlock()
	h := waybill.Health{Live: true, Ready: true}
	if !f.running.Load() {
		h.Add("run", waybill.HealthFailed, "not running")
		return h
	}
	h.Add("run", waybill.HealthOK, "%d outboxes; %d of at most %d relays run, %d outboxes wait for one", s.outboxes, s.active, f.fleet.Active, s.waiting)
	switch {
	case s.lookErr != "":
		h.Add("look", waybill.HealthFailed, "%s", s.lookErr)
	case s.looked.IsZero():
		h.Add("look", waybill.HealthFailed, "starting; the database has not answered yet")
	case time.Since(s.looked) > fleetStale:
		h.Add("look", waybill.HealthFailed, "latest answer %s ago", round(time.Since(s.looked)))
	default:
		h.Add("look", waybill.HealthOK, "latest answer %s ago", round(time.Since(s.looked)))
	}
	hindered, failing := hindrancesOf(ctx, relays), maps.Clone(s.failing)
	if n := len(hindered); n > 0 {
		h.Add("relays", waybill.HealthDegraded, "%d of %d are hindered: %s", n, len(relays), someOf(hindered))
	}
	maps.DeleteFunc(failing, func(name, _ string) bool { return relays[name] != nil })
	if n := len(failing); n > 0 {
		h.Add("outboxes", waybill.HealthDegraded, "%d of %d cannot be served: %s", n, s.outboxes, someOf(failing))
	}
	return h
}

// hindrancesOf returns the hindrance of each relay that has one.
func hindrancesOf(ctx context.Context, relays map[string]*Relay) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	found := map[string]string{}
	for name, r := range relays {
		if text := r.hindrance(ctx); text != "" {
			found[name] = text
		}
	}
	return found
}

// someOf names some outboxes, each with its text.
func someOf(texts map[string]string) string {
	var some []string
	for _, name := range slices.Sorted(maps.Keys(texts))[:min(len(texts), namedOutboxes)] {
		some = append(some, name+": "+texts[name])
	}
	return strings.Join(some, "; ")
}

// Pause stops a route of all outboxes until Resume; see [Relay.Pause].
func (f *Fleet) Pause(route string) error { return f.setPaused("pause", route, true) }

// Resume ends a Pause. Within a minute the messages of all outboxes go on.
func (f *Fleet) Resume(route string) error { return f.setPaused("resume", route, false) }

func (f *Fleet) setPaused(what, route string, paused bool) error {
	if err := f.like.setPaused(what, route, paused); err != nil {
		return err
	}
	f.mu.Lock()
	relays := slices.Collect(maps.Values(f.relays))
	f.mu.Unlock()
	for _, r := range relays {
		_ = r.setPaused(what, route, paused) // it has the same routes
	}
	return nil
}
