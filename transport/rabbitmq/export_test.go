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

// Subscriptions returns the objects that a subscription declares, written out.
var SubscriptionObjects = Options.subscriptionObjects
