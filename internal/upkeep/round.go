package upkeep

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const (
	// Timeout bounds one call of Clean.
	Timeout = 30 * time.Second
	// The rest between the calls of a round is within these bounds.
	minRest = time.Millisecond
	maxRest = 100 * time.Millisecond
	// The cleaner's lease is two intervals, within these bounds.
	minLease = 10 * time.Second
	maxLease = time.Hour
)

// Lease returns the lease of a cleaner that cleans at an interval.
func Lease(interval time.Duration) time.Duration { return min(max(2*interval, minLease), maxLease) }

// Rest returns how long to rest between two calls of a round, of which the first has taken that long: as long, so that
// cleaning takes half of the time at most, and keeps up with many messages on a quick store.
func Rest(took time.Duration) time.Duration { return min(max(took, minRest), maxRest) }

// Round sums up the calls of Clean until there is nothing more to do.
type Round struct{ sum core.Cleaned }

// Add adds the results of one call.
func (r *Round) Add(done *core.Cleaned) {
	r.sum.Expired += done.Expired
	for kind, n := range done.Deleted {
		if r.sum.Deleted == nil {
			r.sum.Deleted = map[core.CleanedKind]int{}
		}
		r.sum.Deleted[kind] += n
	}
}

// End logs the sums with the attribute event, if there are any, and begins a new round.
func (r *Round) End(ctx context.Context, log *slog.Logger, event slog.Attr) {
	total := 0
	var kinds []slog.Attr
	for _, k := range slices.SortedFunc(maps.Keys(r.sum.Deleted), func(a, b core.CleanedKind) int {
		return strings.Compare(kindName(a), kindName(b))
	}) {
		if n := r.sum.Deleted[k]; n > 0 {
			total += n
			kinds = append(kinds, slog.Int(kindName(k), n))
		}
	}
	if total > 0 || r.sum.Expired > 0 {
		attrs := []slog.Attr{event, slog.Int("deleted", total), slog.Int("expired", r.sum.Expired)}
		log.LogAttrs(ctx, slog.LevelInfo, "store cleaned", append(attrs, kinds...)...)
	}
	r.sum = core.Cleaned{}
}

// kindName is the name of a kind of records in the log.
func kindName(k core.CleanedKind) string {
	if k.Reason == waybill.ReasonNone {
		return k.State.String()
	}
	return k.State.String() + "." + string(k.Reason)
}
