package consumer

import "testing"

// CO-10: the receive loop pauses once for each settle that failed, also for the first one after a settle that worked.
func TestEachTroubleIsToldOnce(t *testing.T) {
	t.Parallel()
	s := &session{}
	for at, step := range []struct{ trouble, told int }{{3, 3}, {3, 0}, {1, 1}, {1, 0}, {0, 0}, {1, 1}} {
		s.trouble.Store(int32(step.trouble))
		if told := s.troubles(); told != step.told {
			t.Errorf("%d: %d were told, want %d", at, told, step.told)
		}
	}
}
