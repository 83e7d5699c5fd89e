package topology

// DelayName is what the tests of package topology_test need to see.
var DelayName = delayName

// IsDelayName is what the tests of package topology_test need to see.
var IsDelayName = isDelayName

// DeleteUnusedDelayAfter is DeleteUnusedDelay with another age of the broker's statistics.
var DeleteUnusedDelayAfter = (*Broker).deleteUnusedDelay

// DeleteUnusedQueueAfter is DeleteUnusedQueue with another age of the broker's statistics.
var DeleteUnusedQueueAfter = (*Broker).deleteUnusedQueue

// LimitsWithin is Limits with another wait for policies.
var LimitsWithin = (*Broker).limits
