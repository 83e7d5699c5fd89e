package rabbitmq

import amqp "github.com/rabbitmq/amqp091-go"

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

// ArgsOf returns the arguments of an object.
func ArgsOf(o object) amqp.Table { return o.args }

// SubscriptionObjects returns the objects that a subscription declares.
var SubscriptionObjects = Options.subscriptionObjects
