package hlc_test

import (
	"bytes"
	"database/sql/driver"
	"encoding"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/hlc"
)

var (
	_ encoding.TextMarshaler     = hlc.Timestamp(0)
	_ encoding.TextAppender      = hlc.Timestamp(0)
	_ encoding.TextUnmarshaler   = (*hlc.Timestamp)(nil)
	_ encoding.BinaryMarshaler   = hlc.Timestamp(0)
	_ encoding.BinaryAppender    = hlc.Timestamp(0)
	_ encoding.BinaryUnmarshaler = (*hlc.Timestamp)(nil)
)

// at returns the stamp of ms and counter.
func at(tb testing.TB, ms int64, counter uint16) hlc.Timestamp {
	tb.Helper()
	ts, err := hlc.New(ms, counter)
	if err != nil {
		tb.Fatal(err)
	}
	return ts
}

func TestNew(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		ms      int64
		counter uint16
		want    hlc.Timestamp
		bad     bool
	}{
		{name: "none", want: 0},
		{name: "counter only", counter: 1, want: 1},
		{name: "one millisecond", ms: 1, want: 1 << 16},
		{name: "both", ms: 2, counter: 3, want: 2<<16 | 3},
		{name: "highest", ms: hlc.MaxMillis, counter: math.MaxUint16, want: hlc.MaxTimestamp},
		{name: "negative", ms: -1, bad: true},
		{name: "one too high", ms: hlc.MaxMillis + 1, bad: true},
		{name: "lowest int64", ms: math.MinInt64, bad: true},
		{name: "highest int64", ms: math.MaxInt64, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := hlc.New(tt.ms, tt.counter)
			if tt.bad {
				if !errors.Is(err, hlc.ErrInvalid) || got != 0 {
					t.Fatalf("got %v, %v; want 0 and ErrInvalid", got, err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Fatalf("got %v, %v; want %v", got, err, tt.want)
			}
			if got.Millis() != tt.ms || got.Counter() != tt.counter {
				t.Errorf("got back %d, %d; want %d, %d", got.Millis(), got.Counter(), tt.ms, tt.counter)
			}
		})
	}
}

func TestTimestampIsATime(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 11, 21, 10, 0, 0, 50e6, time.UTC)
	got := at(t, want.UnixMilli(), 7).Time()
	if !got.Equal(want) || got.Location() != time.UTC {
		t.Errorf("got %v, want %v", got, want)
	}
	if !hlc.Timestamp(0).Time().IsZero() {
		t.Errorf("the zero stamp has the time %v, want none", hlc.Timestamp(0).Time())
	}
	if y := hlc.MaxTimestamp.Time().Year(); y != 6429 {
		t.Errorf("the highest stamp is in the year %d, documented 6429", y)
	}
}

func TestTimestampCompares(t *testing.T) {
	t.Parallel()
	low, high := at(t, 5, math.MaxUint16), at(t, 6, 0)
	if low.Compare(high) != -1 || high.Compare(low) != 1 || low.Compare(low) != 0 {
		t.Error("Compare does not order by milliseconds first")
	}
	if !low.Before(high) || high.Before(low) || low.Before(low) {
		t.Error("Before is wrong")
	}
	if !high.After(low) || low.After(high) || low.After(low) {
		t.Error("After is wrong")
	}
	if !hlc.Timestamp(0).IsZero() || low.IsZero() {
		t.Error("IsZero is wrong")
	}
	if !hlc.Timestamp(0).Valid() || !hlc.MaxTimestamp.Valid() || hlc.Timestamp(-1).Valid() {
		t.Error("Valid is wrong")
	}
}

// The forms are on the wire and in tables: they never change.
func TestForms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		ts   hlc.Timestamp
		text string
		bin  []byte
	}{
		{0, "0000000000000000", []byte{0, 0, 0, 0, 0, 0, 0, 0}},
		{1, "0000000000000001", []byte{0, 0, 0, 0, 0, 0, 0, 1}},
		{at(t, 1, 0), "0000000000010000", []byte{0, 0, 0, 0, 0, 1, 0, 0}},
		{at(t, 0x0123456789ab, 0xcdef), "0123456789abcdef", []byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}},
		{hlc.MaxTimestamp, "7fffffffffffffff", []byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			if got := tt.ts.String(); got != tt.text || len(got) != hlc.TextLen {
				t.Errorf("String: %q", got)
			}
			if got, err := hlc.Parse(tt.text); err != nil || got != tt.ts {
				t.Errorf("Parse: %v, %v", got, err)
			}
			text, err := tt.ts.AppendText([]byte("x"))
			if err != nil || string(text) != "x"+tt.text {
				t.Errorf("AppendText: %q, %v", text, err)
			}
			bin, err := tt.ts.MarshalBinary()
			if diff := cmp.Diff(tt.bin, bin); err != nil || diff != "" || len(bin) != hlc.BinaryLen {
				t.Errorf("MarshalBinary: %v, %s", err, diff)
			}
			bin, err = tt.ts.AppendBinary([]byte{9})
			if err != nil || !bytes.Equal(bin, append([]byte{9}, tt.bin...)) {
				t.Errorf("AppendBinary: %v, %v", bin, err)
			}
			var back hlc.Timestamp
			if err := back.UnmarshalBinary(tt.bin); err != nil || back != tt.ts {
				t.Errorf("UnmarshalBinary: %v, %v", back, err)
			}
		})
	}
}

func TestBadText(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "0", "000000000000000", "00000000000000000", // length
		"8000000000000000", "ffffffffffffffff", // above the highest
		"000000000000000A", "0123456789ABCDEF", // one form only
		"000000000000000g", "+000000000000001", "-000000000000001", "0x00000000000001",
		" 000000000000001", "000000000000001\n", "0000_0000_0000_0", "00000000000000é", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
	} {
		if got, err := hlc.Parse(s); !errors.Is(err, hlc.ErrInvalid) || got != 0 {
			t.Errorf("Parse(%q) = %v, %v; want ErrInvalid", s, got, err)
		}
		ts := hlc.Timestamp(42)
		if err := ts.UnmarshalText([]byte(s)); !errors.Is(err, hlc.ErrInvalid) || ts != 42 {
			t.Errorf("UnmarshalText(%q): %v, %v; want ErrInvalid and no change", s, ts, err)
		}
	}
}

func TestBadBinary(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{
		nil,
		{},
		{1},
		make([]byte, 7), make([]byte, 9), make([]byte, 16),
		{0x80, 0, 0, 0, 0, 0, 0, 0},
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		ts := hlc.Timestamp(42)
		if err := ts.UnmarshalBinary(b); !errors.Is(err, hlc.ErrInvalid) || ts != 42 {
			t.Errorf("UnmarshalBinary(%v): %v, %v; want ErrInvalid and no change", b, ts, err)
		}
	}
}

// An invalid stamp prints, but does not get onto a wire.
func TestInvalidStampDoesNotMarshal(t *testing.T) {
	t.Parallel()
	for _, ts := range []hlc.Timestamp{-1, math.MinInt64} {
		if _, err := hlc.Parse(ts.String()); !errors.Is(err, hlc.ErrInvalid) {
			t.Errorf("Parse(%s): %v, want ErrInvalid", ts, err)
		}
		if b, err := ts.MarshalText(); !errors.Is(err, hlc.ErrInvalid) || len(b) != 0 {
			t.Errorf("MarshalText: %q, %v", b, err)
		}
		if b, err := ts.MarshalBinary(); !errors.Is(err, hlc.ErrInvalid) || len(b) != 0 {
			t.Errorf("MarshalBinary: %v, %v", b, err)
		}
		if b, err := ts.AppendText([]byte("x")); !errors.Is(err, hlc.ErrInvalid) || string(b) != "x" {
			t.Errorf("AppendText: %q, %v", b, err)
		}
		if b, err := ts.AppendBinary([]byte("x")); !errors.Is(err, hlc.ErrInvalid) || string(b) != "x" {
			t.Errorf("AppendBinary: %q, %v", b, err)
		}
	}
}

func TestJSONAndSQL(t *testing.T) {
	t.Parallel()
	type row struct {
		HLC  hlc.Timestamp `json:"hlc"`
		None hlc.Timestamp `json:"none,omitzero"`
	}
	in := row{HLC: at(t, 0x0123456789ab, 0xcdef)}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `{"hlc":"0123456789abcdef"}` {
		t.Fatalf("got %s, %v", b, err)
	}
	var out row
	if err := json.Unmarshal(b, &out); err != nil || out != in {
		t.Fatalf("got %v, %v", out, err)
	}
	v, err := driver.DefaultParameterConverter.ConvertValue(in.HLC)
	if err != nil || v != int64(in.HLC) {
		t.Errorf("as a database/sql parameter: %v, %v; want the int64", v, err)
	}
}
