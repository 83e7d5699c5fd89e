package redisstreams

import "encoding/binary"

// The messages of one script call travel as msgpack, which Lua on the server unpacks: one argument a message instead of
// one a field, at about a third of the time of both sides.

func packArray(b []byte, n int) []byte {
	if n < 16 {
		return append(b, 0x90|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
}

func packInt(b []byte, n int64) []byte {
	if n >= 0 && n < 128 {
		return append(b, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}

func packString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}

func packStrings(b []byte, list []string) []byte {
	for _, s := range list {
		b = packString(b, s)
	}
	return b
}
