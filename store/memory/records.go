package memory

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// StoredRecord is a record as it is stored, for tests.
type StoredRecord struct {
	Envelope waybill.Envelope
	Route    string
	Seq      int64
	// State is core.StateProcessing while a member holds it. A relay holds few of the records that it has out.
	State    core.State
	Attempts int
	// Crashes counts members that were removed while they held it.
	Crashes int
	// Due is when it is or became due.
	Due         time.Time
	Reason      waybill.Reason
	LastError   string
	LastErrorAt time.Time
}

// Records returns copies of all stored records in staging order, abandoned ones too.
func (s *Store) Records() []StoredRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.rows()
	out := make([]StoredRecord, len(rows))
	for i, r := range rows {
		out[i] = StoredRecord{
			Envelope: r.env.Clone(), Route: r.route.name, Seq: r.seq, State: r.shown(), Attempts: r.attempts, Crashes: r.crashes,
			Due: r.due, Reason: r.reason, LastError: r.lastErr, LastErrorAt: r.errAt,
		}
	}
	return out
}

// Corrupt makes the record with this sequence unreadable, for tests: from then on it is read with Record.Err.
func (s *Store) Corrupt(seq int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rt := range s.routes {
		if r := rt.bySeq[seq]; r != nil && r.staging == nil {
			r.unreadable = errors.New("waybill/memory: the row cannot be read: corrupted by a test")
			return nil
		}
	}
	return fmt.Errorf("waybill/memory: corrupt: no record has sequence %d", seq)
}
