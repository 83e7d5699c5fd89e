package outboxtest_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// releasing gives what each release of a record that another session holds becomes.
func releasing(fn func(ctx context.Context, b *broken, holder core.Session, o core.Outcome) error) fault {
	return fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := make(core.Results, len(os))
		for i, o := range os {
			if r := b.at(o.Ref()); r != nil && r.HeldBy != 0 && r.HeldBy != self && o.Event() == core.EventReleased {
				res[i] = fn(ctx, b, r.HeldBy, o)
			} else {
				res[i] = b.store.Settle(ctx, self, os[i:i+1])[0]
			}
		}
		return res
	}}
}

var foreignFaults = []faulty{
	{
		"ends every hold", "release-leaves-the-hold-of-another",
		releasing(func(ctx context.Context, b *broken, holder core.Session, o core.Outcome) error {
			return b.store.Settle(ctx, holder, []core.Outcome{o})[0]
		}),
	},
}
