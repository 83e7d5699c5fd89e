package inboxtest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/store/memory"
)

// brokenMarks is a store of marks with one fault.
type brokenMarks struct {
	memory.Marks
	begin  func(b *brokenMarks, ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error)
	finish func(b *brokenMarks, ctx context.Context, key core.InboxKey, keep time.Duration) error
	forget func(b *brokenMarks, ctx context.Context, key core.InboxKey, token string) error
}

func (b *brokenMarks) BeginMark(ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
	if b.begin != nil {
		return b.begin(b, ctx, key, token, lease)
	}
	return b.Marks.BeginMark(ctx, key, token, lease)
}

func (b *brokenMarks) FinishMark(ctx context.Context, key core.InboxKey, keep time.Duration) error {
	if b.finish != nil {
		return b.finish(b, ctx, key, keep)
	}
	return b.Marks.FinishMark(ctx, key, keep)
}

func (b *brokenMarks) ForgetMark(ctx context.Context, key core.InboxKey, token string) error {
	if b.forget != nil {
		return b.forget(b, ctx, key, token)
	}
	return b.Marks.ForgetMark(ctx, key, token)
}

// Every check of marks fails with a store that breaks its promise.
func TestMarkSuiteCatchesFaults(t *testing.T) { // TE-02 TE-06
	t.Parallel()
	type marks = brokenMarks
	faults := map[string]struct {
		store *marks
		by    string
	}{
		"everybody may claim": {&marks{begin: func(b *marks, ctx context.Context, key core.InboxKey, _ string, lease time.Duration) (core.InboxStatus, error) {
			return b.Marks.BeginMark(ctx, key, "same", lease)
		}}, "claim-is-exclusive"},
		"a storm of claims": {&marks{begin: func(b *marks, ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
			if len(token) > 1 {
				return b.Marks.BeginMark(ctx, key, "same", lease)
			}
			return b.Marks.BeginMark(ctx, key, token, lease)
		}}, "storm-has-one-claim"},
		"claims for ever": {&marks{begin: func(b *marks, ctx context.Context, key core.InboxKey, token string, _ time.Duration) (core.InboxStatus, error) {
			return b.Marks.BeginMark(ctx, key, token, 1000*time.Hour)
		}}, "claim-ends-with-its-lease"},
		"half the lease": {&marks{begin: func(b *marks, ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
			return b.Marks.BeginMark(ctx, key, token, lease/3)
		}}, "claim-ends-with-its-lease"},
		"no renewal": {&marks{begin: func(b *marks, ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
			if st, err := b.Marks.BeginMark(ctx, key, "-", time.Nanosecond); errors.Is(err, waybill.ErrInFlight) {
				return core.InboxNew, nil
			} else if err != nil || st == core.InboxDuplicate {
				return st, err
			}
			time.Sleep(time.Microsecond)
			return b.Marks.BeginMark(ctx, key, token, lease)
		}}, "claim-is-renewed-by-its-token"},
		"never forgets": {&marks{forget: func(*marks, context.Context, core.InboxKey, string) error { return nil }}, "forgotten-claim-is-free"},
		"anybody forgets": {&marks{forget: func(b *marks, ctx context.Context, key core.InboxKey, _ string) error {
			for _, token := range []string{"a", "b", "c"} {
				if err := b.Marks.ForgetMark(ctx, key, token); err != nil {
					return err
				}
			}
			return nil
		}}, "only-the-token-forgets"},
		"never done": {&marks{finish: func(b *marks, ctx context.Context, key core.InboxKey, _ time.Duration) error {
			_, err := b.Marks.BeginMark(ctx, key, "a", time.Hour)
			return err
		}}, "done-is-done"},
		"done as long as a lease": {&marks{finish: func(b *marks, ctx context.Context, key core.InboxKey, _ time.Duration) error {
			return b.Marks.FinishMark(ctx, key, 2*time.Second)
		}}, "done-is-kept"},
		"keys without case": {&marks{begin: func(b *marks, ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
			key.Source = strings.ToLower(key.Source)
			return b.Marks.BeginMark(ctx, key, token, lease)
		}}, "keys-are-apart"},
		"any key": {&marks{finish: func(b *marks, ctx context.Context, key core.InboxKey, keep time.Duration) error {
			if key.Source == "" {
				key.Source = "/"
			}
			return b.Marks.FinishMark(ctx, key, keep)
		}}, "bad-mark-is-refused"},
		"deaf": {&marks{finish: func(b *marks, ctx context.Context, key core.InboxKey, keep time.Duration) error {
			return b.Marks.FinishMark(context.WithoutCancel(ctx), key, keep)
		}}, "marks-heed-their-context"},
		"no hash": {&marks{finish: func(b *marks, ctx context.Context, key core.InboxKey, keep time.Duration) error {
			return b.Marks.FinishMark(ctx, key.WithoutHash(), keep)
		}}, "done-for-another-content"},
	}
	backed := map[string]bool{}
	for name, f := range faults {
		backed[f.by] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for _, c := range inboxtest.MarkChecks() {
					if c.Name != f.by {
						continue
					}
					if err := c.Run(t.Context(), f.store); err == nil {
						t.Errorf("%s does not notice", c.Name)
					} else if strings.Contains(err.Error(), "panic") || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v", c.Name, err)
					}
				}
			})
		})
	}
	for _, c := range inboxtest.MarkChecks() {
		if !backed[c.Name] {
			t.Errorf("no fault is behind %s", c.Name)
		}
	}
}
