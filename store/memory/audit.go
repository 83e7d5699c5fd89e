package memory

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/admin/audit"
)

var _ audit.Recorder = (*Store)(nil)

// AppendAudit adds a line to the audit record, which lives as long as the store; see [audit.Recorder].
func (s *Store) AppendAudit(_ context.Context, e audit.Entry) error {
	e, err := e.Check()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Number, e.At, e.Role = int64(len(s.audit))+1, s.now(), ""
	s.audit = append(s.audit, e)
	return nil
}

// ListAudit lists the audit record; see [audit.Recorder].
func (s *Store) ListAudit(_ context.Context, before int64, limit int) ([]audit.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []audit.Entry
	for i := range slices.Backward(s.audit) {
		if e := s.audit[i]; len(out) < max(limit, 1) && (before <= 0 || e.Number < before) {
			e.IDs = slices.Clone(e.IDs)
			out = append(out, e)
		}
	}
	return out, nil
}
