package waybill

// SharedLimit bounds the handlers of a subscription over all processes together. The zero value is no limit. It needs a
// limiter in the options of the consumer, which keeps the limit's state for all of them.
type SharedLimit struct {
	// Name says which subscriptions share the limit; the default is the queue's name. Give several subscriptions
	// one name to share, for example, the quota of a service that they call. They should then ask for the same
	// numbers: each process applies its own.
	Name string
	// Rate is how many messages may begin per second, one in ten minutes to 100,000; 0 = unbounded. In no span of t
	// seconds do more than Burst + Rate × t begin. A retry that comes from the broker, and one in place, counts;
	// one in the process does not.
	Rate float64
	// Burst is how many messages may begin at once after a quiet time; the default is a second's worth, but at
	// least 1. It is at least half a second's worth, since processes take permits ahead.
	Burst int
	// Concurrency is how many handlers run at a time, 1 to 10,000; 0 = unbounded. A batch counts as one. It holds
	// as long as every process reaches the limiter within its lease of 15 s.
	Concurrency int
}

// GroupLimit bounds what the messages of one group, such as one tenant, take of one process. The zero value is no
// limit. A message that its group's limit stops waits in the process, while those of other groups go on.
type GroupLimit struct {
	// By returns the group of a delivery; nil means its tenant. A delivery of the group "" is not limited. By is
	// called once for each delivery, on one goroutine at a time, and must not block. A delivery for which it panics
	// is parked.
	By func(d *Delivery) string
	// Concurrency is how many handlers of one group run at a time; 0 = unbounded.
	Concurrency int
	// Rate is how many messages of one group may begin per second, one in ten minutes to 100,000; 0 = unbounded.
	Rate float64
	// Burst is how many messages of one group may begin at once after a quiet time; the default is a second's
	// worth, but at least 1.
	Burst int
}
