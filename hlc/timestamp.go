package hlc

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	// MaxMillis is the highest number of milliseconds since 1970 that a stamp can
	// hold: 47 bits, in the year 6429.
	MaxMillis int64 = 1<<47 - 1

	// MaxTimestamp is the highest stamp.
	MaxTimestamp Timestamp = math.MaxInt64

	// TextLen is the length of the text form in bytes.
	TextLen = 16

	// BinaryLen is the length of the binary form in bytes.
	BinaryLen = 8

	counterBits = 16
	hexDigits   = "0123456789abcdef"
)

// ErrInvalid is in the chain of every error about a stamp that is malformed or
// outside the range that a stamp or a clock can hold.
var ErrInvalid = errors.New("invalid stamp")

// Timestamp is a hybrid logical stamp: milliseconds since 1970 in the upper 48
// bits, a counter in the lower 16. Zero means none. Negative values are invalid;
// they arise only by converting a foreign int64, see Valid.
//
// Stamps compare with <, == and > like any integer. A Timestamp goes into a
// signed 64-bit column as int64(t); database/sql converts it by itself.
type Timestamp int64

// New returns the stamp of ms milliseconds since 1970 and the given counter. It
// fails with ErrInvalid if ms is below 0 or above MaxMillis. New(0, 0) is the
// zero stamp, which means none.
func New(ms int64, counter uint16) (Timestamp, error) {
	if ms < 0 || ms > MaxMillis {
		return 0, fmt.Errorf("waybill/hlc: new: %w: %d milliseconds, want 0 to %d", ErrInvalid, ms, MaxMillis)
	}
	return Timestamp(ms<<counterBits | int64(counter)), nil
}

// MaxMark returns the highest stamp that a store takes for the mark of clocks at
// the time now: DefaultMaxDrift ahead of it. So neither a machine whose clock is
// fast nor a forged stamp becomes the mark of every clock.
func MaxMark(now time.Time) Timestamp {
	ms := min(max(0, now.Unix()), ceilingMillis/1000) * 1000
	return Timestamp((ms+int64(now.Nanosecond())/1e6+DefaultMaxDrift.Milliseconds())<<counterBits | math.MaxUint16)
}

// Parse reads the text form that String writes: 16 lower-case hexadecimal
// digits, no other form. It fails with ErrInvalid. The error does not repeat s.
func Parse(s string) (Timestamp, error) {
	if len(s) != TextLen {
		return 0, fmt.Errorf("waybill/hlc: parse: %w: %d bytes of text, want %d hexadecimal digits", ErrInvalid, len(s), TextLen)
	}
	var v uint64
	for i := range len(s) {
		switch b := s[i]; {
		case b >= '0' && b <= '9':
			v = v<<4 | uint64(b-'0')
		case b >= 'a' && b <= 'f':
			v = v<<4 | uint64(b-'a'+10)
		default:
			return 0, fmt.Errorf("waybill/hlc: parse: %w: byte %d is not a lower-case hexadecimal digit", ErrInvalid, i)
		}
	}
	return fromBits("parse", v)
}

func fromBits(op string, v uint64) (Timestamp, error) {
	if v > math.MaxInt64 {
		return 0, fmt.Errorf("waybill/hlc: %s: %w: above the highest stamp, in the year 6429", op, ErrInvalid)
	}
	return Timestamp(v), nil
}

// Millis returns the milliseconds since 1970, by the clock that gave out the stamp
// or the fastest one it had heard of.
func (t Timestamp) Millis() int64 { return int64(t) >> counterBits }

// Counter returns the counter, which orders stamps of one millisecond.
func (t Timestamp) Counter() uint16 { return uint16(t & math.MaxUint16) }

// Time returns the milliseconds as a time in UTC, without the counter. The zero
// stamp gives the zero time.Time.
func (t Timestamp) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMilli(t.Millis()).UTC()
}

// IsZero reports whether t is the zero stamp, which means none.
func (t Timestamp) IsZero() bool { return t == 0 }

// Valid reports whether t is not negative. Everything in this package returns
// valid stamps; check those converted from a foreign int64.
func (t Timestamp) Valid() bool { return t >= 0 }

// Compare returns -1, 0 or +1 as t is below, equal to or above u.
func (t Timestamp) Compare(u Timestamp) int { return cmp.Compare(t, u) }

// Before reports whether t is below u.
func (t Timestamp) Before(u Timestamp) bool { return t < u }

// After reports whether t is above u.
func (t Timestamp) After(u Timestamp) bool { return t > u }

// String returns the text form: 16 lower-case hexadecimal digits, the first 12
// of them milliseconds, the last 4 the counter. Valid stamps sort as text as they do
// as numbers. The zero stamp is 16 zeros. An invalid stamp is printed
// too, in a form that Parse refuses.
func (t Timestamp) String() string {
	var b [TextLen]byte
	return string(t.appendHex(b[:0]))
}

func (t Timestamp) appendHex(b []byte) []byte {
	v := uint64(t)
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[v>>shift&0xf])
	}
	return b
}

func (t Timestamp) check(op string) error {
	if !t.Valid() {
		return fmt.Errorf("waybill/hlc: %s: %w: negative", op, ErrInvalid)
	}
	return nil
}

// AppendText appends the text form to b, see String. It fails with ErrInvalid
// for an invalid stamp and then returns b as it was.
func (t Timestamp) AppendText(b []byte) ([]byte, error) {
	if err := t.check("marshal text"); err != nil {
		return b, err
	}
	return t.appendHex(b), nil
}

// MarshalText returns the text form, see String. It fails with ErrInvalid for an
// invalid stamp. It makes a stamp a string in JSON.
func (t Timestamp) MarshalText() ([]byte, error) {
	return t.AppendText(nil)
}

// UnmarshalText reads the text form as Parse does. On an error t is unchanged.
func (t *Timestamp) UnmarshalText(text []byte) error {
	v, err := Parse(string(text))
	if err != nil {
		return err
	}
	*t = v
	return nil
}

// AppendBinary appends the binary form to b, see MarshalBinary. It fails with
// ErrInvalid for an invalid stamp and then returns b as it was.
func (t Timestamp) AppendBinary(b []byte) ([]byte, error) {
	if err := t.check("marshal binary"); err != nil {
		return b, err
	}
	return binary.BigEndian.AppendUint64(b, uint64(t)), nil
}

// MarshalBinary returns the binary form: 8 bytes, big endian, which sort as the
// numbers do. It fails with ErrInvalid for an invalid stamp.
func (t Timestamp) MarshalBinary() ([]byte, error) {
	return t.AppendBinary(nil)
}

// UnmarshalBinary reads the binary form: exactly 8 bytes, the first below 0x80.
// It fails with ErrInvalid and then leaves t unchanged.
func (t *Timestamp) UnmarshalBinary(data []byte) error {
	if len(data) != BinaryLen {
		return fmt.Errorf("waybill/hlc: unmarshal binary: %w: %d bytes, want %d", ErrInvalid, len(data), BinaryLen)
	}
	v, err := fromBits("unmarshal binary", binary.BigEndian.Uint64(data))
	if err != nil {
		return err
	}
	*t = v
	return nil
}
