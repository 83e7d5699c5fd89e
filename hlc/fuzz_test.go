package hlc_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/waybill-go/waybill/hlc"
)

// String writes each text that Parse accepts back byte for byte.
func FuzzText(f *testing.F) {
	for _, s := range []string{
		"", "0", "0000000000000000", "0123456789abcdef", "7fffffffffffffff",
		"8000000000000000", "0123456789ABCDEF", "00000000000000é", " 00000000000000g",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ts, err := hlc.Parse(s)
		var u hlc.Timestamp
		if errU := u.UnmarshalText([]byte(s)); (errU == nil) != (err == nil) || u != ts {
			t.Fatalf("Parse(%q) = %v, %v; UnmarshalText = %v, %v", s, ts, err, u, errU)
		}
		if err != nil {
			if !errors.Is(err, hlc.ErrInvalid) || ts != 0 {
				t.Fatalf("Parse(%q) = %v, %v", s, ts, err)
			}
			return
		}
		if !ts.Valid() || ts.String() != s {
			t.Fatalf("%q came back as %q", s, ts)
		}
	})
}

// MarshalBinary writes all bytes that UnmarshalBinary accepts back as they
// were.
func FuzzBinary(f *testing.F) {
	for _, b := range [][]byte{
		nil,
		{0},
		make([]byte, 8), make([]byte, 9),
		{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		{0x80, 0, 0, 0, 0, 0, 0, 0},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var ts hlc.Timestamp
		if err := ts.UnmarshalBinary(b); err != nil {
			if !errors.Is(err, hlc.ErrInvalid) || ts != 0 {
				t.Fatalf("UnmarshalBinary(%v): %v, %v", b, ts, err)
			}
			return
		}
		back, err := ts.MarshalBinary()
		if err != nil || !bytes.Equal(back, b) {
			t.Fatalf("%v came back as %v, %v", b, back, err)
		}
	})
}

// No remote stamp at any wall reading panics, takes the clock back, or moves it
// without being accepted.
func FuzzObserve(f *testing.F) {
	f.Add(today, int64(hlc.MaxTimestamp), int64(0))
	f.Add(today, today<<16|65535, int64(-1))
	f.Add(int64(-1), int64(-1), int64(1))
	f.Fuzz(func(t *testing.T, ms, remote, mark int64) {
		var w wall
		w.ms.Store(ms)
		c := newClock(t, hlc.Options{Wall: w.now})
		if err := c.Seed(hlc.Timestamp(mark)); err != nil && c.Last() != 0 {
			t.Fatalf("Seed(%d) failed and moved the clock: %v", mark, err)
		}
		before := c.Last()
		ts, err := c.Observe(hlc.Timestamp(remote))
		switch {
		case err != nil && (c.Last() != before || c.Rejected() != 1 || ts != 0):
			t.Fatalf("refused (%v), but the clock went from %v to %v", err, before, c.Last())
		case err == nil && (ts <= before || ts <= hlc.Timestamp(remote) || c.Last() != ts):
			t.Fatalf("Observe(%d) = %v from %v, last %v", remote, ts, before, c.Last())
		}
		if before, ts = c.Last(), c.Now(); ts <= before {
			t.Fatalf("Now went from %v to %v", before, ts)
		}
	})
}
