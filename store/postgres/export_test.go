package postgres

// SQL returns the statement with the names of s in their places.
func SQL(s *Outbox, text string) string { return s.names.sql(text) }

// Statements whose plans are tested.
var (
	SetSQL           = setSQL
	RangesSQL        = collector{shared: true}.sql(rangesSQL, ofRangesSQL)
	BoundedRangesSQL = collector{}.sql(rangesSQL, ofRangesSQL)
	KeysSQL          = collector{shared: true}.sql(keysSQL, ofKeysSQL)
	KeysWaitingSQL   = keysWaitingSQL
	FreshSQL         = freshSQL
	DeleteAllSQL     = deleteAllSQL
	NextDueSQL       = nextDueSQL
	NextSQL          = nextSQL
	RosterSQL        = rosterSQL
	PageSQL          = pageSQL
	EndHoldsSQL      = endHoldsSQL
	SeedSQL          = seedSQL
)
