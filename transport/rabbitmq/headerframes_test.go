package rabbitmq_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// frame makes a frame of a type.
func frame(kind byte, payload string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind, 0, 1}, uint32(len(payload)))
	return append(append(b, payload...), 0xCE)
}

// headerFrame makes a header frame with a content type, a table of these fields, and a message id.
func headerFrame(fields ...string) []byte {
	table := strings.Join(fields, "")
	return frame(2, "\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02"+"\xa0\x80"+"\x0atext/plain"+longString(table)+"\x02id")
}

func longString(s string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func field(name, value string) string { return string([]byte{byte(len(name))}) + name + value }

func table(fields ...string) string { return "F" + longString(strings.Join(fields, "")) }

// The driver reads tables of 32 levels and 8192 elements. Each unreadable frame of a stream is replaced by a readable
// one, which keeps the readable headers.
func TestHeaderFrames(t *testing.T) {
	t.Parallel()
	level := func(n int) string {
		value := "V"
		for i := range n {
			if i%2 == 0 {
				value = "A" + longString(value)
			} else {
				value = table(field("in", value))
			}
		}
		return field("deep", value)
	}
	count := field("x-delivery-count", "l\x00\x00\x00\x00\x00\x00\x00\x01")
	death := field("x-death", "A"+longString(table(field("queue", "S"+longString("q")))))
	id := field("cloudEvents_key", "S"+longString("k"))
	big := func(n int) string { return field("big", "x"+longString(strings.Repeat("x", n))) }
	const limit = 100_000
	for name, c := range map[string]struct {
		in   []byte
		want []string // the fields that are left; nil = all
		why  string
	}{
		"no headers":       {in: frame(2, "\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x80\x00\x0atext/plain")},
		"every type":       {in: headerFrame(field("a", "t\x01"), field("b", "b1"), field("c", "B1"), field("d", "s12"), field("e", "u12"), field("f", "I1234"), field("g", "i1234"), field("h", "f1234"), field("i", "l12345678"), field("j", "d12345678"), field("k", "T12345678"), field("l", "D12345"), field("m", "V"), id, big(10))},
		"32 levels":        {in: headerFrame(level(32))},
		"33 levels":        {in: headerFrame(level(33), id, count), want: []string{id, count}, why: `header "deep"`},
		"8192 elements":    {in: headerFrame(field("wide", "A"+longString(strings.Repeat("V", 8192))))},
		"8193 elements":    {in: headerFrame(id, field("wide", "A"+longString(strings.Repeat("V", 8193)))), want: []string{id}, why: `header "wide"`},
		"8193 headers":     {in: headerFrame(strings.Repeat(field("a", "V"), 8193)), want: []string{strings.Repeat(field("a", "V"), 1000)}, why: "8193 headers"},
		"a history":        {in: headerFrame(big(limit-100), id, death, count), want: []string{big(limit - 100), id, count}},
		"a count":          {in: headerFrame(big(limit-85), id, death, count), want: []string{big(limit - 85), id}},
		"too large":        {in: headerFrame(big(limit), id, death, count), want: []string{id, death, count}, why: "above the frame_max"},
		"malformed":        {in: headerFrame(id, field("big", "S\x00\x00\xff\xffx")), want: []string{id}, why: "malformed"},
		"an unknown type":  {in: headerFrame(id, field("big", "?")), want: []string{id}, why: "malformed"},
		"a body frame":     {in: frame(3, strings.Repeat("x", 200_000))},
		"a forged problem": {in: headerFrame(level(33), field("waybill-unreadable", "S"+longString("no"))), want: []string{}, why: `header "deep"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := frame(8, "")
			got, err := io.ReadAll(iotest.OneByteReader(rabbitmq.HeaderFrames(bytes.NewReader(append(append([]byte{}, c.in...), after...)), limit)))
			if err != nil {
				t.Fatal(err)
			}
			want := c.in
			if c.want != nil {
				want = headerFrame(c.want...)
			}
			if c.why == "" {
				if !bytes.Equal(got, append(append([]byte{}, want...), after...)) {
					t.Errorf("%d bytes, want %d: %.300q", len(got), len(want)+len(after), got)
				}
				return
			}
			got, ok := bytes.CutSuffix(got, after)
			at := bytes.LastIndex(got, []byte("\x12waybill-unreadableS"))
			if !ok || at < 0 || !strings.Contains(string(got[at:]), c.why) {
				t.Fatalf("%q is not said in %.300q", c.why, got)
			}
			why := string(got[at+24 : len(got)-4])
			if want = headerFrame(append(c.want, field("waybill-unreadable", "S"+longString(why)))...); !bytes.Equal(got, want) {
				t.Errorf("%.400q, want %.400q", got, want)
			}
			again, err := io.ReadAll(rabbitmq.HeaderFrames(bytes.NewReader(got), limit))
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("it is replaced again: %v", err)
			}
		})
	}
}

// A stream that ends within a frame is handed on to its last byte.
func TestHeaderFramesEnd(t *testing.T) {
	t.Parallel()
	whole := headerFrame(field("a", "V"))
	for n := range whole {
		got, err := io.ReadAll(rabbitmq.HeaderFrames(bytes.NewReader(whole[:n]), 0))
		if err != nil || len(got) != n {
			t.Fatalf("%d of %d bytes: %v", len(got), n, err)
		}
	}
}

// A frame that the driver can read costs no memory, however many headers it has.
func TestHeaderFramesCost(t *testing.T) {
	stream := bytes.Repeat(headerFrame(field("a", "V"), field("b", table(field("c", "V")))), 100)
	r, buf := bytes.NewReader(stream), make([]byte, 4096)
	frames := rabbitmq.HeaderFrames(r, 0)
	if n := testing.AllocsPerRun(100, func() {
		r.Reset(stream)
		for {
			if _, err := frames.Read(buf); err != nil {
				return
			}
		}
	}); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// For every table of a frame, the frame that replaces it states its own length and is not replaced again.
func FuzzHeaderFrames(f *testing.F) {
	f.Add([]byte(field("a", nestedTables(40))), uint16(4096))
	f.Add([]byte(field("a", "V")), uint16(4096))
	f.Fuzz(func(t *testing.T, b []byte, limit uint16) {
		made := rabbitmq.ReadableFrame(headerFrame(string(b)), 4096+int(limit))
		if made == nil {
			return
		}
		if n := binary.BigEndian.Uint32(made[3:]); int(n)+8 != len(made) {
			t.Fatalf("%d bytes, and the frame says %d", len(made), n)
		}
		if again := rabbitmq.ReadableFrame(made, 4096+int(limit)); again != nil {
			t.Fatalf("%.300q is replaced again", made)
		}
	})
}

func nestedTables(levels int) string {
	value := "V"
	for range levels {
		value = table(field("in", value))
	}
	return value
}
