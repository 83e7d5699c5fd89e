package postgres

import (
	"maps"
	"time"

	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// SQL returns the statement with the names of s in their places.
func SQL(s *Outbox, text string) string { return s.names.SQL(text) }

// Statements whose plans are tested.
var (
	SetSQL           = setSQL
	RangesSQL        = newBounded(schema.Names{}, rangesSQL, ofRangesSQL+bySeqSQL).shared
	BoundedRangesSQL = newBounded(schema.Names{}, rangesSQL, ofRangesSQL+bySeqSQL).added
	KeysSQL          = newBounded(schema.Names{}, keysSQL, ofKeysSQL+byKeySQL).shared
	KeysWaitingSQL   = keysWaitingSQL
	FreshSQL         = freshSQL
	BlockedSQL       = blockedSQL
	DeleteAllSQL     = deleteAllSQL
	NextDueSQL       = nextDueSQL
	NextSQL          = nextSQL
	MembershipSQL    = membershipSQL
	PageSQL          = pageSQL
	EndHoldsSQL      = endHoldsSQL
	SeedSQL          = seedSQL
)

// Indexed builds the indexes after a fill.
var Indexed = indexed

// SleepDeeply has each Wait of o sleep for d as soon as it may rely on notifications.
func SleepDeeply(o *Outbox, d time.Duration) { o.waiter.SleepDeeply(d) }

// GoOn has cleaning go on from where it has got to, for the next hour. Otherwise it begins anew now and then.
func GoOn(o *Outbox, in *Inbox) {
	later := func(r *resume) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.from.IsZero() {
			r.anew = time.Now().Add(time.Hour)
		}
	}
	for i := range o.cleaned {
		later(&o.cleaned[i])
	}
	later(&o.swept)
	later(in.purged.get("c"))
}

// NoticeFloor returns the number up to which all notices are gone, as far as o knows.
func NoticeFloor(o *Outbox) int64 {
	return o.floor.look().after
}

// Anew has the next look for expired records begin at the beginning.
func Anew(o *Outbox) {
	o.swept.mu.Lock()
	defer o.swept.mu.Unlock()
	o.swept.anew = time.Time{}
}

// Texts returns the statements of an outbox by their names.
func Texts(o *Outbox) map[string]string {
	all := named("outbox", o.sql)
	maps.Copy(all, named("stage", &o.stager.sql))
	return all
}

// ReleaseStatements returns all statements, by their names.
var ReleaseStatements = releaseStatements
