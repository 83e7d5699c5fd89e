package hlc_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/hlc"
)

// AllocsPerRun does not run beside parallel tests, so this one is not parallel.
func TestHotPathsDoNotAllocate(t *testing.T) {
	fixed := time.UnixMilli(today)
	frozen := newClock(t, hlc.Options{Wall: func() time.Time { return fixed }})
	var real hlc.Clock
	remote := at(t, today, 0)
	buf := make([]byte, 0, hlc.TextLen)
	text := remote.String()
	paths := map[string]func(){
		"Now":             func() { real.Now() },
		"Now, own wall":   func() { frozen.Now() },
		"Observe":         func() { _, _ = frozen.Observe(remote) },
		"Observe, higher": func() { _, _ = frozen.Observe(frozen.Last() + 1) },
		"Seed":            func() { _ = frozen.Seed(frozen.Last() + 1) },
		"Last":            func() { frozen.Last() },
		"AppendText":      func() { _, _ = remote.AppendText(buf[:0]) },
		"AppendBinary":    func() { _, _ = remote.AppendBinary(buf[:0]) },
		"Parse":           func() { _, _ = hlc.Parse(text) },
	}
	for name, f := range paths {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkNow(b *testing.B) {
	var c hlc.Clock
	b.ReportAllocs()
	for b.Loop() {
		c.Now()
	}
}

func BenchmarkNowParallel(b *testing.B) {
	var c hlc.Clock
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.Now()
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	var c hlc.Clock
	remote := c.Now()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Observe(remote); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkObserveRejected(b *testing.B) {
	var c hlc.Clock
	remote := c.Now() + hlc.Timestamp(year<<16)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Observe(remote); err == nil {
			b.Fatal("accepted")
		}
	}
}

func BenchmarkString(b *testing.B) {
	ts := at(b, today, 1)
	b.ReportAllocs()
	for b.Loop() {
		_ = ts.String()
	}
}

func BenchmarkParse(b *testing.B) {
	s := at(b, today, 1).String()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hlc.Parse(s); err != nil {
			b.Fatal(err)
		}
	}
}
