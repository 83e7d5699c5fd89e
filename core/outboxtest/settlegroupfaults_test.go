package outboxtest_test

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// byFirst settles a group as if all of it were the first member's.
var byFirst = fault{group: func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool {
	return b.store.Settle(ctx, selves[0], slices.Concat(os...)).FirstErr() == nil
}}

// saysStored says of each group that it is stored.
var saysStored = fault{group: func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool {
	b.oneByOne(ctx, selves, os)
	return true
}}

var groupFaults = []faulty{
	{"refuses each group", "group-settles-for-each-member", fault{group: func(context.Context, *broken, []core.Session, [][]core.Outcome) bool { return false }}},
	{
		"settles for the first member of a group only", "group-settles-for-each-member",
		fault{group: func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool {
			return b.oneByOne(ctx, selves[:1], os[:1])
		}},
	},
	{"settles for a removed member", "group-with-a-removed-session-is-refused", byFirst},
	{"says that the settle of a removed member is stored", "group-with-a-removed-session-is-refused", saysStored},
	{"says that a locked record is settled", "group-with-a-locked-record-is-refused", saysStored},
	{"waits for a locked record", "group-with-a-locked-record-is-refused", fault{waits: "settle group"}},
	{"says that another record is settled", "group-with-another-record-is-refused", saysStored},
	{"settles another record", "group-with-another-record-is-refused", anyID},
}
