package memory

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// State is a record as it is stored, for tests of engines.
type State struct {
	Route, ID, Key string
	Seq, Version   int64
	// TxID is the id of the transaction that staged it.
	TxID int64
	Slot uint8
	// State is the stored state: a hold does not change it.
	State core.State
	// Reason says why it was abandoned. LastError is the error of its last failed attempt.
	Reason                        waybill.Reason
	LastError                     string
	Attempts, Crashes, Deliveries int
	// Waits reports a timer or a retry; it is due after DueIn.
	Waits  bool
	DueIn  time.Duration
	Holder core.Session
	// Maybe reports that it can have been delivered, and Locked that an open transaction has locked it.
	Maybe, Locked bool
}

// Settled reports whether the record is published or abandoned.
func (st *State) Settled() bool { return st.State.Terminal() }

// States returns all committed records by sequence, settled ones too, as engines see them.
func (s *Store) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	rows := s.rows()
	out := make([]State, len(rows))
	for i, r := range rows {
		out[i] = State{
			Route: r.route.name, ID: r.env.ID, Key: r.env.Key, Seq: r.seq, Version: r.version, TxID: r.txID, Slot: r.slot, State: r.state,
			Reason: r.reason, LastError: r.lastErr, Attempts: r.attempts, Crashes: r.crashes, Deliveries: r.deliveries, Waits: r.waits(),
			Holder: r.holder, Maybe: r.maybe, Locked: r.lock != nil,
		}
		if r.waits() {
			out[i].DueIn = max(r.due.Sub(now), 0)
		}
	}
	return out
}

// rows returns the committed records by sequence.
func (s *Store) rows() (rows []*record) {
	for _, rt := range s.routes {
		for _, r := range rt.bySeq {
			if r.staging == nil {
				rows = append(rows, r)
			}
		}
	}
	slices.SortFunc(rows, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.route.name, b.route.name))
	})
	return rows
}

// SetSequence makes n the last sequence number that was drawn.
func (s *Store) SetSequence(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq = n
}

// Image is a copy of all committed data.
type Image struct {
	seq, lastTx, told int64
	rows              []record
	partitions, kept  []core.PartitionState
	members           []member
	notice            []command
	values            map[string]string
	inbox             inboxMarks
	cleaner           election
}

// Snapshot returns a copy of all committed data.
func (s *Store) Snapshot() *Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	img := &Image{
		seq: s.seq, lastTx: s.lastTx, told: s.told, values: maps.Clone(s.values), inbox: s.inbox.copy(), cleaner: s.cleaner,
	}
	for _, r := range s.rows() {
		img.rows = append(img.rows, *r)
	}
	for _, name := range s.names() {
		for _, u := range s.routes[name].partitions {
			img.partitions = append(img.partitions, u.PartitionState)
		}
		if kept := s.routes[name].kept; kept.Term > 0 {
			img.kept = append(img.kept, kept)
		}
	}
	for _, m := range s.members {
		img.members = append(img.members, m.copy())
	}
	for _, c := range s.notice {
		img.notice = append(img.notice, *c)
	}
	return img
}

func (m *member) copy() member {
	c := newMember(m.Member)
	c.renewed = m.renewed
	return *c
}

// Restore sets the database back to img, as a fail-over or a restore does. Open transactions end, and the epoch
// changes.
func (s *Store) Restore(img *Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for tx := range s.open {
		tx.end()
	}
	s.notice = nil
	s.routes, s.members, s.holders = map[string]*route{}, map[core.Session]*member{}, map[liveKey]*record{}
	s.values, s.inbox, s.cleaner = maps.Clone(img.values), img.inbox.copy(), img.cleaner
	s.seq, s.lastTx, s.told = img.seq, img.lastTx, img.told
	s.restores++
	for i := range img.members {
		m := img.members[i].copy()
		s.members[m.Session] = &m
	}
	for _, u := range img.partitions {
		s.route(u.Partition.Route).addPartition(&partition{u})
	}
	for _, u := range img.kept {
		s.route(u.Partition.Route).kept = u
	}
	for i := range img.rows {
		r := img.rows[i]
		r.route, r.lock = s.route(r.route.name), nil
		r.route.byID[r.env.ID], r.route.bySeq[r.seq] = &r, &r
		if m := s.members[r.holder]; m != nil {
			m.held[&r] = struct{}{}
		}
		if r.dedupe != "" && r.live() {
			s.holders[r.liveKey()] = &r
		}
		s.place(&r)
	}
	for i := range img.notice {
		c := img.notice[i]
		s.notice = append(s.notice, &c)
	}
	for _, rt := range s.routes {
		s.news(rt)
	}
}
