package outboxtest_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// present answers members with another Missing.
func present(fn func(m *core.Member) bool) fault {
	return memberships(func(r *core.Membership) {
		for i := range r.Members {
			r.Members[i].PresenceLost = fn(&r.Members[i])
		}
	})
}

var presenceFaults = []faulty{
	{
		"flags whatever the token", "suspicion-needs-the-token",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			r, _ := b.store.Heartbeat(ctx, core.HeartbeatRequest{})
			for i := range m.Suspect {
				for _, x := range r.Members {
					if x.Session == m.Suspect[i].Session {
						m.Suspect[i].Presence = x.Presence
					}
				}
			}
			return b.store.Heartbeat(ctx, m)
		}},
	},
	{"flags who has no token", "suspicion-needs-the-token", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		for _, f := range m.Suspect {
			b.heartbeats[f.Session] = f.Presence + 1
		}
		for i := range r.Members {
			r.Members[i].Suspected = r.Members[i].Suspected || b.heartbeats[r.Members[i].Session] == 1
		}
	}}},
	{"misses who has no token", "missing-needs-a-token", present(func(m *core.Member) bool { return m.Presence == 0 || m.PresenceLost })},
	{"misses who is there", "acquired-token-is-present", present(func(m *core.Member) bool { return m.Presence != 0 })},
	{
		"loses tokens at once", "acquired-token-is-present",
		fault{acquire: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
			token, _, err := b.store.Acquire(ctx)
			lost := make(chan struct{})
			close(lost)
			return token, lost, err
		}},
	},
	{"misses nobody", "token-is-missing-after-its-end", present(func(*core.Member) bool { return false })},
	{
		"does not say that a token is lost", "token-is-missing-after-its-end",
		fault{acquire: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
			token, _, err := b.store.Acquire(ctx)
			return token, make(chan struct{}), err
		}},
	},
	{"has one token", "acquire-has-new-tokens", fault{acquire: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
		_, lost, err := b.store.Acquire(ctx)
		return 1, lost, err
	}}},
}
