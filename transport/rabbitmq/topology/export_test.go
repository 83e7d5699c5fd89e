package topology

// DelayName is what the tests of package topology_test need to see.
var DelayName = delayName

// IsDelayName is what the tests of package topology_test need to see.
var IsDelayName = isDelayName
