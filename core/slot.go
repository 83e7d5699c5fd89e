package core

import (
	"crypto/md5" //nolint:gosec // not for security: every database has it, and it never changes
	"math/bits"
)

// Stored data depends on these values. They never change.
const (
	// NumSlots is the number of slots of a route.
	NumSlots = 64
	// AllSlots is every slot of a route.
	AllSlots = ^Slots(0)
)

// SlotOf returns the slot of a record: the first 6 bits of the MD5 of the route, the byte 0x1F and the key. A record
// without a key has its id in place of the key. Databases compute the same for rows that were inserted by hand.
func SlotOf(route, key, id string) uint8 {
	if key == "" {
		key = id
	}
	buf := make([]byte, 0, 128)
	buf = append(buf, route...)
	buf = append(buf, '\x1f')
	buf = append(buf, key...)
	sum := md5.Sum(buf) //nolint:gosec // see above
	return sum[0] >> 2
}

// Slots is a set of slots: bit n is slot n.
type Slots uint64

// SlotRange returns the slots [from, to).
func SlotRange(from, to uint8) Slots {
	if from >= to {
		return 0
	}
	return AllSlots >> (NumSlots - (to - from)) << from
}

// Has reports whether slot n is in the set.
func (s Slots) Has(n uint8) bool { return s>>n&1 != 0 }

// Len returns the number of slots in the set.
func (s Slots) Len() int { return bits.OnesCount64(uint64(s)) }

// SplitPartitions returns n partitions that cover the slots of a route exactly once; n is 1 to 64.
func SplitPartitions(route string, n int) []Partition {
	n = min(max(n, 1), NumSlots)
	partitions := make([]Partition, n)
	for i := range partitions {
		partitions[i] = Partition{route, uint8(i * NumSlots / n), uint8((i + 1) * NumSlots / n)}
	}
	return partitions
}
