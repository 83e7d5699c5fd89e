package postgres

import (
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
