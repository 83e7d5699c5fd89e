package outboxtest_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// present answers members with another Missing.
func present(fn func(m *core.Member) bool) fault {
	return rosters(func(r *core.Roster) {
		for i := range r.Members {
			r.Members[i].Missing = fn(&r.Members[i])
		}
	})
}

var presenceFaults = []faulty{
	{
		"flags whatever the token", "flag-needs-the-token",
		fault{meet: func(ctx context.Context, b *broken, m core.Meeting) (core.Roster, error) {
			r, _ := b.store.Meet(ctx, core.Meeting{})
			for i := range m.Flag {
				for _, x := range r.Members {
					if x.Session == m.Flag[i].Session {
						m.Flag[i].Presence = x.Presence
					}
				}
			}
			return b.store.Meet(ctx, m)
		}},
	},
	{"flags who has no token", "flag-needs-the-token", fault{roster: func(b *broken, m *core.Meeting, r *core.Roster) {
		for _, f := range m.Flag {
			b.beats[f.Session] = f.Presence + 1
		}
		for i := range r.Members {
			r.Members[i].Flag = r.Members[i].Flag || b.beats[r.Members[i].Session] == 1
		}
	}}},
	{"misses who has no token", "missing-needs-a-token", present(func(m *core.Member) bool { return m.Presence == 0 || m.Missing })},
	{"misses who is there", "attended-token-is-present", present(func(m *core.Member) bool { return m.Presence != 0 })},
	{
		"loses tokens at once", "attended-token-is-present",
		fault{attend: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
			token, _, err := b.store.Attend(ctx)
			lost := make(chan struct{})
			close(lost)
			return token, lost, err
		}},
	},
	{"misses nobody", "token-is-missing-after-its-end", present(func(*core.Member) bool { return false })},
	{
		"does not say that a token is lost", "token-is-missing-after-its-end",
		fault{attend: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
			token, _, err := b.store.Attend(ctx)
			return token, make(chan struct{}), err
		}},
	},
	{"has one token", "attend-has-new-tokens", fault{attend: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
		_, lost, err := b.store.Attend(ctx)
		return 1, lost, err
	}}},
}
