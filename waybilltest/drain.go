package waybilltest

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// member is a Flow while it drains: the one member of its outbox, which owns all of it and has one record at a time. It
// leaves with the drain, so that commands of operators find no owner afterwards.
type member struct {
	*Flow
	self  core.Member
	parts []core.RouteSlots
	skip  map[string][]int64 // by route, what an open transaction of the test has locked
}

func (f *Flow) join() *member {
	f.sessions++
	return &member{Flow: f, self: core.Member{Session: f.sessions, Name: "waybilltest", Lease: time.Hour, Capacity: 1, FreeCapacity: 1}, skip: map[string][]int64{}}
}

func (m *member) leave() error {
	if m.self.Heartbeats == 0 {
		return nil
	}
	_, err := m.store.Heartbeat(context.WithoutCancel(m.tb.Context()), core.HeartbeatRequest{Self: m.self, Leave: true})
	return err
}

// serve takes the routes that have something to do and are not owned yet.
func (m *member) serve() error {
	counts, err := m.store.Counts(m.tb.Context())
	if err != nil {
		return err
	}
	routes := len(m.self.Routes)
	for i := range counts {
		known := func(s core.ServedRoute) bool { return s.Route == counts[i].Route }
		if !counts[i].State.Terminal() && !slices.ContainsFunc(m.self.Routes, known) {
			m.self.Routes = append(m.self.Routes, core.ServedRoute{Route: counts[i].Route, InitialPartitions: 1})
		}
	}
	if len(m.self.Routes) == routes {
		return nil
	}
	m.self.Heartbeats++
	membership, err := m.store.Heartbeat(m.tb.Context(), core.HeartbeatRequest{Self: m.self, Join: true})
	if err != nil {
		return err
	}
	var moves []core.Transfer
	for _, u := range membership.Partitions {
		if u.Owner == 0 {
			moves = append(moves, core.Transfer{Partition: u.Partition, To: m.self.Session})
			m.parts = append(m.parts, core.RouteSlots{Route: u.Partition.Route, Slots: u.Partition.Slots()})
		}
	}
	_, err = m.store.Heartbeat(m.tb.Context(), core.HeartbeatRequest{Self: m.self, Transfers: moves})
	return err
}

// next returns the next message, and how long it would have waited; nil if there is none.
func (m *member) next() (*core.Record, time.Duration, error) {
	defer func() { m.skew = 0 }()
	for {
		if err := m.serve(); err != nil || len(m.parts) == 0 {
			return nil, 0, err
		}
		due, err := m.store.Due(m.tb.Context(), m.self.Session, m.parts, 1)
		if err != nil {
			return nil, 0, err
		}
		if len(due.Retries) > 0 {
			return &due.Retries[0], m.skew, nil
		}
		rec, err := m.ready()
		if err != nil {
			return nil, 0, err
		}
		if rec != nil || due.NextIn <= 0 || m.opts.KeepScheduled {
			dueIn, err := m.dueIn(rec)
			return rec, dueIn, err
		}
		m.skew += due.NextIn
	}
}

// ready takes the first message of all that are due.
func (m *member) ready() (*core.Record, error) {
	for {
		var request core.ReadRequest
		for _, p := range m.parts {
			request.Ranges = append(request.Ranges, core.Range{RouteSlots: p, UpToSeq: math.MaxInt64, ExcludeSeqs: m.skip[p.Route], Limit: 1})
		}
		result, err := m.store.Read(m.tb.Context(), m.self.Session, request)
		if err != nil {
			return nil, err
		}
		var first *core.Record
		for _, r := range result.Ranges {
			if len(r.Records) > 0 && (first == nil || r.Records[0].Seq < first.Seq) {
				first = &r.Records[0]
			}
		}
		if first == nil {
			return nil, nil //nolint:nilnil // there is none
		}
		taken, err := m.store.Hold(m.tb.Context(), m.self.Session, core.HoldRequest{Refs: []core.Ref{first.Ref}})
		if err != nil || taken[0].Status == core.HoldGranted {
			return first, err
		}
		m.skip[first.Route] = append(m.skip[first.Route], first.Seq)
	}
}

// dueIn returns for how long from now a message would have waited. Age is negative before it is first due.
func (m *member) dueIn(rec *core.Record) (time.Duration, error) {
	if rec == nil {
		return 0, nil
	}
	stored, err := m.store.Inspect(m.tb.Context(), rec.Route, rec.Envelope.ID)
	return max(m.skew-stored.Age, 0), err
}
