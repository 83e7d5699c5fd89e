package waybilltest

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// member is an Env while it drains: the one member of its outbox, which owns all of it and has one record at a time. It
// leaves with the drain, so that commands of operators find no owner afterwards.
type member struct {
	*Env
	self  core.Member
	parts []core.RouteSlots
	skip  map[string][]int64 // by route, what an open transaction of the test has locked
}

func (e *Env) join() *member {
	e.sessions++
	return &member{Env: e, self: core.Member{Session: e.sessions, Name: "waybilltest", Lease: time.Hour, Capacity: 1, FreeCapacity: 1}, skip: map[string][]int64{}}
}

func (m *member) leave() error {
	if m.self.Heartbeats == 0 {
		return nil
	}
	_, err := m.Store.Heartbeat(context.WithoutCancel(m.tb.Context()), core.HeartbeatRequest{Self: m.self, Leave: true})
	return err
}

// serve takes the routes that have something to do and are not owned yet.
func (m *member) serve() error {
	routes := len(m.self.Routes)
	for _, r := range m.Store.Records() {
		known := func(s core.ServedRoute) bool { return s.Route == r.Route }
		if !r.State.Terminal() && !slices.ContainsFunc(m.self.Routes, known) {
			m.self.Routes = append(m.self.Routes, core.ServedRoute{Route: r.Route, Partitions: 1})
		}
	}
	if len(m.self.Routes) == routes {
		return nil
	}
	m.self.Heartbeats++
	membership, err := m.Store.Heartbeat(m.tb.Context(), core.HeartbeatRequest{Self: m.self, Join: true})
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
	_, err = m.Store.Heartbeat(m.tb.Context(), core.HeartbeatRequest{Self: m.self, Transfers: moves})
	return err
}

// next returns the next message, and how long it would have waited; nil if there is none.
func (m *member) next() (*core.Record, time.Duration, error) {
	defer func() { m.skew = 0 }()
	for {
		if err := m.serve(); err != nil || len(m.parts) == 0 {
			return nil, 0, err
		}
		due, err := m.Store.Due(m.tb.Context(), m.self.Session, m.parts, 1)
		if err != nil {
			return nil, 0, err
		}
		if len(due.Retries) > 0 {
			return &due.Retries[0], m.dueIn(&due.Retries[0]), nil
		}
		rec, err := m.ready()
		if rec != nil || err != nil || due.NextIn <= 0 || m.opts.KeepScheduled {
			return rec, m.dueIn(rec), err
		}
		m.skew += due.NextIn
	}
}

// ready takes the first message of all that are due.
func (m *member) ready() (*core.Record, error) {
	for {
		var request core.ReadRequest
		for _, p := range m.parts {
			request.Ranges = append(request.Ranges, core.Range{RouteSlots: p, To: math.MaxInt64, ExcludeSeqs: m.skip[p.Route], Limit: 1})
		}
		result, err := m.Store.Read(m.tb.Context(), m.self.Session, request)
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
		taken, err := m.Store.Hold(m.tb.Context(), m.self.Session, core.HoldRequest{Refs: []core.Ref{first.Ref}})
		if err != nil || taken[0].Status == core.HoldGranted {
			return first, err
		}
		m.skip[first.Route] = append(m.skip[first.Route], first.Seq)
	}
}

// dueIn returns for how long from now a message would have waited.
func (m *member) dueIn(rec *core.Record) time.Duration {
	if rec != nil {
		for _, r := range m.Store.Records() {
			if r.Route == rec.Route && r.Seq == rec.Seq {
				return max(r.Due.Sub(m.clock), 0)
			}
		}
	}
	return 0
}
