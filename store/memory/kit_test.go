package memory_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

const route = "orders"

// all is every slot of the route, and everything a range of all of it.
var (
	all        = core.RouteSlots{Route: route, Slots: core.AllSlots}
	everything = core.Range{RouteSlots: all, UpToSeq: math.MaxInt64}
	partition  = core.Partition{Route: route, From: 0, To: 64}
	errNo      = errors.New("no")
)

// kit is a store with a clock that stands.
type kit struct {
	testing.TB
	*memory.Store
	now time.Time
	ids int
}

func newKit(tb testing.TB, opts memory.Options) *kit {
	tb.Helper()
	k := &kit{TB: tb, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	opts.Now = func() time.Time { return k.now }
	opts.Source = "/test"
	s, err := memory.New(opts)
	k.no(err)
	k.Store = s
	return k
}

// row returns a row of the route with the key.
func row(id, key string) core.StagedRow {
	return core.StagedRow{Route: route, Envelope: waybill.Envelope{ID: id, Key: key, Topic: "t", Body: []byte("body")}}
}

func later(r core.StagedRow, d time.Duration) core.StagedRow {
	r.Delay = d
	return r
}

func cancellable(r core.StagedRow) core.StagedRow {
	r.Cancellable = true
	return r
}

// put stages rows in a transaction of their own.
func (k *kit) put(rows ...core.StagedRow) []int64 {
	k.Helper()
	tx := k.Begin()
	seqs, err := tx.Stage(rows...)
	k.no(err)
	k.no(tx.Commit())
	return seqs
}

// fill stages n rows with the keys in turn.
func (k *kit) fill(n int, keys ...string) {
	k.Helper()
	tx := k.Begin()
	for i := range n {
		k.ids++
		key := ""
		if len(keys) > 0 {
			key = keys[i%len(keys)]
		}
		_, err := tx.Stage(row("m"+strconv.Itoa(k.ids), key))
		k.no(err)
	}
	k.no(tx.Commit())
}

func (k *kit) no(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *kit) heartbeat(m core.HeartbeatRequest) core.Membership {
	k.Helper()
	r, err := k.Heartbeat(k.Context(), m)
	k.no(err)
	return r
}

// member is a member that serves the route with n partitions.
func member(session core.Session, heartbeats int64, n int) core.Member {
	return core.Member{Session: session, Heartbeats: heartbeats, Routes: []core.ServedRoute{{Route: route, InitialPartitions: n}}}
}

// join makes session the owner of partitions.
func (k *kit) join(session core.Session, partitions ...core.Partition) {
	k.Helper()
	m := core.HeartbeatRequest{Self: member(session, 1, 1), Join: true}
	for _, u := range partitions {
		m.Transfers = append(m.Transfers, core.Transfer{Partition: u, To: session})
	}
	k.heartbeat(m)
}

// bury makes by remove session.
func (k *kit) bury(by, session core.Session) {
	k.Helper()
	for _, m := range k.heartbeat(core.HeartbeatRequest{}).Members {
		if m.Session == session {
			k.heartbeat(core.HeartbeatRequest{Self: core.Member{Session: by}, Evict: []core.Eviction{{Session: session, Heartbeats: m.Heartbeats}}})
		}
	}
}

func (k *kit) look(self core.Session, request core.ReadRequest) core.ReadResult {
	k.Helper()
	p, err := k.Read(k.Context(), self, request)
	k.no(err)
	return p
}

// read returns all ready records.
func (k *kit) read(self core.Session) []core.Record {
	k.Helper()
	return k.look(self, core.ReadRequest{Ranges: []core.Range{everything}}).Ranges[0].Records
}

// get returns the ready record with the id.
func (k *kit) get(self core.Session, id string) *core.Record {
	k.Helper()
	for _, r := range k.read(self) {
		if r.ID == id {
			return &r
		}
	}
	k.Fatalf("%s is not ready", id)
	return nil
}

func (k *kit) settle(self core.Session, o ...core.Outcome) core.Results {
	k.Helper()
	return k.Settle(k.Context(), self, o)
}

func (k *kit) take(self core.Session, want core.HoldRequest) []core.HoldResult {
	k.Helper()
	got, err := k.Hold(k.Context(), self, want)
	k.no(err)
	return got
}

// hold makes self hold records, which must succeed.
func (k *kit) hold(self core.Session, records ...*core.Record) {
	k.Helper()
	want := core.HoldRequest{}
	for _, r := range records {
		want.Refs = append(want.Refs, r.Ref)
	}
	for _, g := range k.take(self, want) {
		if g.Status != core.HoldGranted {
			k.Fatalf("%s: status %d", g.Ref.ID, g.Status)
		}
	}
}

func (k *kit) due(self core.Session, limit int) core.DueResult {
	k.Helper()
	p, err := k.Due(k.Context(), self, []core.RouteSlots{all}, limit)
	k.no(err)
	return p
}

func (k *kit) state(id string) *memory.State {
	for _, st := range k.States() {
		if st.ID == id {
			return &st
		}
	}
	return nil
}

func ids(records []core.Record) []string {
	out := []string{}
	for i := range records {
		out = append(out, records[i].ID)
	}
	return out
}

func (k *kit) same(what string, got, want []string) {
	k.Helper()
	if !slices.Equal(got, want) {
		k.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (k *kit) is(what string, err, want error) {
	k.Helper()
	if !errors.Is(err, want) {
		k.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (k *kit) fact(what string, ok bool) {
	k.Helper()
	if !ok {
		k.Error(what)
	}
}
