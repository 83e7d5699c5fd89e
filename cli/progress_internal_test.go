package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// OP-01: progress is shown at most twice a second, with rate and time left.
func TestProgress(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(1_000, 0)
	p := &progress{w: &out, now: func() time.Time { return now }, began: now}
	for i := range 100 { // ten seconds
		p.at("moved", int64(i*100), 100_000)
		now = now.Add(100 * time.Millisecond)
	}
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 20 || string(lines[0]) != "moved 0 of 100,000 (0 %)" || string(lines[10]) != "moved 5,000 of 100,000 (5 %), 1,000/s, 1m35s left" {
		t.Errorf("%d lines\n%s", len(lines), out.String())
	}
	out.Reset()
	p = &progress{w: &out, tty: true, now: func() time.Time { return now }, began: now}
	p.at("moved", 5, 0)
	p.end()
	if got := out.String(); got != "\rmoved 5\x1b[K\r\x1b[K" {
		t.Errorf("%q", got)
	}
	var none *progress
	none.at("moved", 1, 2)
	none.end()
}

// OP-01: the end of due records shows no share and no time left: the records that matched so far are not all.
func TestProgressOfAnEnd(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(1_000, 0)
	p := &progress{w: &out, now: func() time.Time { return now }, began: now.Add(-time.Second)}
	new(command).endOptions(p).Progress(admin.TerminateResult{Matched: 1000, Ended: 900})
	if got := out.String(); got != "ended 900, 900/s\n" {
		t.Errorf("%q", got)
	}
}

// Numbers have a comma after each thousand.
func TestGrouped(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
