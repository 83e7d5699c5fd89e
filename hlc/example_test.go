package hlc_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/hlc"
)

// Replica b is 80 ms behind replica a. Its reaction is stamped later all the same.
func Example() {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	a, err := hlc.NewClock(hlc.Options{Wall: func() time.Time { return noon }})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := hlc.NewClock(hlc.Options{Wall: func() time.Time { return noon.Add(-80 * time.Millisecond) }})
	if err != nil {
		fmt.Println(err)
		return
	}

	cause := a.Now() // travels with the message
	if _, err := b.Observe(cause); err != nil {
		fmt.Println(err)
		return
	}
	effect := b.Now()

	fmt.Println(cause)
	fmt.Println(effect)
	fmt.Println(effect.After(cause))
	// Output:
	// 01a1fdfa46000000
	// 01a1fdfa46000002
	// true
}

// A stamp from the far future is refused. The clock goes on as before.
func ExampleClock_Observe() {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	c, err := hlc.NewClock(hlc.Options{Wall: func() time.Time { return noon }})
	if err != nil {
		fmt.Println(err)
		return
	}
	forged, err := hlc.New(noon.Add(24*time.Hour).UnixMilli(), 0)
	if err != nil {
		fmt.Println(err)
		return
	}

	_, err = c.Observe(forged)
	var drift *hlc.DriftError
	fmt.Println(errors.Is(err, hlc.ErrDrift), errors.As(err, &drift), drift.Ahead, c.Rejected())
	fmt.Println(c.Now().Time())
	// Output:
	// true true 24h0m0s 1
	// 2026-11-21 12:00:00 +0000 UTC
}

// A clock continues above what the last run persisted, although the wall clock was set
// back by ten seconds meanwhile.
func ExampleClock_Seed() {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	before, err := hlc.NewClock(hlc.Options{Wall: func() time.Time { return noon }})
	if err != nil {
		fmt.Println(err)
		return
	}
	before.Now()
	mark := before.Last() // persist this

	after, err := hlc.NewClock(hlc.Options{Wall: func() time.Time { return noon.Add(-10 * time.Second) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := after.Seed(mark); err != nil {
		fmt.Println(err) // a mark from the future: do not stage with this clock
		return
	}
	fmt.Println(after.Now().After(mark), after.Ahead())
	// Output: true 10s
}

func ExampleParse() {
	ts, err := hlc.Parse("01a1fdfa46000002")
	fmt.Println(ts.Time(), ts.Counter(), err)
	_, err = hlc.Parse("yesterday")
	fmt.Println(err)
	// Output:
	// 2026-11-21 12:00:00 +0000 UTC 2 <nil>
	// waybill/hlc: parse: invalid stamp: 9 bytes of text, want 16 hexadecimal digits
}
