package rabbitmq

// What the tests of package rabbitmq_test need to see.
var (
	Decode     = decode
	Encode     = encode
	Culprit    = culprit
	Blames     = blames
	DialError  = dialError
	DelayName  = delayName
	Tiers      = tiers
	TierFor    = tierFor
	CheckURL   = checkURL
	DeclareErr = declareError
)

// RefreshAt makes t copy a parked message anew after so many looks.
func (t *Transport) RefreshAt(n int64) { t.refreshAt = n }
