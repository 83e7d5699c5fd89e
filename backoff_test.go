package waybill_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

func TestBackoffDelays(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		b    waybill.Backoff
		want []time.Duration
	}{
		"default": {waybill.Backoff{}, []time.Duration{
			s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s,
			256 * s, 300 * s, 300 * s,
		}},
		"factor 3, cap 10": {waybill.Backoff{Factor: 3, Cap: 10 * s}, []time.Duration{s, 3 * s, 9 * s, 10 * s}},
		"linear":           {waybill.Backoff{Kind: waybill.BackoffLinear, Base: 2 * s, Cap: 5 * s}, []time.Duration{2 * s, 4 * s, 5 * s}},
		"constant":         {waybill.Backoff{Kind: waybill.BackoffConstant, Base: 3 * s}, []time.Duration{3 * s, 3 * s}},
		"schedule":         {*waybill.RetryDelays(5*s, 0, 7*s), []time.Duration{5 * s, 0, 7 * s, 0}},
		"schedule with cap": {
			waybill.Backoff{Kind: waybill.BackoffDelays, Delays: []time.Duration{5 * s, 9 * s}, Cap: 7 * s},
			[]time.Duration{5 * s, 7 * s},
		},
		"none": {waybill.Backoff{Kind: waybill.BackoffNone}, []time.Duration{0}},
	} {
		for i, want := range tc.want {
			if got := tc.b.Delay(i + 1); got != want {
				t.Errorf("%s: delay %d is %s, want %s", name, i+1, got, want)
			}
		}
	}
}

func TestBackoffAttempts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		b    waybill.Backoff
		want int // 0 = no end
	}{
		"default":        {waybill.Backoff{}, waybill.DefaultBackoffAttempts},
		"three":          {waybill.Backoff{Attempts: 3}, 3},
		"no bound":       {waybill.Backoff{Attempts: -1}, 0},
		"none":           {waybill.Backoff{Kind: waybill.BackoffNone, Attempts: 5}, 1},
		"schedule":       {waybill.Backoff{Kind: waybill.BackoffDelays, Delays: make([]time.Duration, 2), Attempts: 9}, 3},
		"empty schedule": {*waybill.RetryDelays(), 1},
	} {
		attempts := 1
		for ; attempts < 1000; attempts++ {
			if _, again, err := tc.b.Next(attempts, nil); err != nil {
				t.Fatal(err)
			} else if !again {
				break
			}
		}
		if tc.want == 0 && attempts < 1000 || tc.want > 0 && attempts != tc.want || tc.b.MaxAttempts() != tc.want {
			t.Errorf("%s: %d attempts, MaxAttempts %d, want %d", name, attempts, tc.b.MaxAttempts(), tc.want)
		}
	}
}

func TestBackoffStaysInBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := waybill.Backoff{
			Kind: rapid.SampledFrom([]waybill.BackoffKind{
				waybill.BackoffExponential, waybill.BackoffLinear,
				waybill.BackoffConstant,
			}).Draw(t, "kind"),
			Base:   time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base")),
			Factor: rapid.Float64Range(1, 1000).Draw(t, "factor"),
			Jitter: rapid.SampledFrom([]waybill.JitterKind{waybill.JitterEqual, waybill.JitterShare, waybill.JitterNone}).Draw(t, "jitter"),
			Share:  rapid.Float64Range(0, 1).Draw(t, "share"),
		}
		b.Cap = b.Base + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "cap"))
		b.Attempts = -1
		if p := b.Validate("Retry"); len(p) > 0 {
			t.Fatal(p)
		}
		n := rapid.IntRange(-3, math.MaxInt32).Draw(t, "attempt")
		d := b.Delay(n)
		if d < b.Base || d > b.Cap || n >= 1 && n < 1000 && b.Delay(n+1) < d {
			t.Fatalf("delay %d is %s, base %s, cap %s, next %s", n, d, b.Base, b.Cap, b.Delay(n+1))
		}
		low, high := d, d
		switch b.Jitter {
		case waybill.JitterEqual:
			low = d / 2
		case waybill.JitterShare:
			low, high = time.Duration(float64(d)*(1-b.Share)), time.Duration(float64(d)*(1+b.Share))
		case waybill.JitterNone:
		}
		got, again, err := b.Next(n, nil)
		if err != nil || !again || got < low-1 || got > high+1 {
			t.Fatalf("Next(%d) = %s, %v, %v; want %s to %s", n, got, again, err, low, high)
		}
	})
}

// RL-05: jitter spreads equal delays over its whole range, so that those who failed together do not come back together.
func TestBackoffSpreads(t *testing.T) {
	t.Parallel()
	for _, b := range []waybill.Backoff{
		{Kind: waybill.BackoffConstant, Base: time.Hour, Cap: time.Hour, Attempts: -1, Jitter: waybill.JitterEqual},
		{Kind: waybill.BackoffConstant, Base: time.Hour, Cap: time.Hour, Attempts: -1, Jitter: waybill.JitterShare, Share: 0.5},
	} {
		low, high := time.Hour/2, time.Hour
		if b.Jitter == waybill.JitterShare {
			high = time.Hour * 3 / 2
		}
		const draws, parts = 1000, 4
		var hits [parts]int
		for range draws {
			d, _, err := b.Next(1, nil)
			if err != nil || d < low || d > high {
				t.Fatalf("jitter %d: %s, %v", b.Jitter, d, err)
			}
			hits[min(int((d-low)*parts/(high-low)), parts-1)]++
		}
		for part, n := range hits { // a quarter each; less than a tenth never happens
			if n < draws/10 {
				t.Errorf("jitter %d: %d of %d delays are in part %d of the range: %v", b.Jitter, n, draws, part, hits)
			}
		}
	}
}

func TestBackoffCustom(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	b := waybill.Backoff{Kind: waybill.BackoffCustom, Custom: func(attempt int, err error) (time.Duration, bool) {
		if !errors.Is(err, cause) {
			t.Error("the cause did not arrive")
		}
		switch attempt {
		case 1:
			return time.Second, true
		case 2:
			return -1, true
		case 3:
			panic("secret")
		case 4:
			return math.MaxInt64, true
		}
		return 0, false
	}}
	for attempt, want := range map[int]struct {
		d     time.Duration
		again bool
		err   bool
	}{
		1: {time.Second, true, false},
		2: {waybill.DefaultBackoffCap, true, true},
		3: {waybill.DefaultBackoffCap, true, true},
		4: {waybill.DefaultBackoffCap, true, true},
		5: {0, false, false},
	} {
		d, again, err := b.Next(attempt, cause)
		if d != want.d || again != want.again || (err != nil) != want.err {
			t.Errorf("attempt %d: got %s, %v, %v", attempt, d, again, err)
		}
	}
}

func TestBackoffTiers(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		b    waybill.Backoff
		want []time.Duration
	}{
		"up to the cap":  {waybill.Backoff{Cap: 5 * s, Attempts: -1}, []time.Duration{s, 2 * s, 4 * s, 5 * s}},
		"up to the last": {waybill.Backoff{Attempts: 3}, []time.Duration{s, 2 * s}},
		"constant":       {waybill.Backoff{Kind: waybill.BackoffConstant, Attempts: -1}, []time.Duration{s}},
		"schedule":       {*waybill.RetryDelays(7*s, s, 7*s), []time.Duration{s, 7 * s}},
		"none":           {waybill.Backoff{Kind: waybill.BackoffNone}, nil},
	} {
		if got := tc.b.Tiers(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	linear := waybill.Backoff{Kind: waybill.BackoffLinear, Cap: time.Hour, Attempts: -1}
	if n := len(linear.Tiers()); n > 64 {
		t.Errorf("%d tiers", n)
	}
}

func TestBackoffValidate(t *testing.T) {
	t.Parallel()
	good := []waybill.Backoff{
		{},
		{Attempts: -1},
		{Kind: waybill.BackoffNone},
		*waybill.RetryDelays(),
		*waybill.RetryDelays(time.Hour),
		{Share: 1, Jitter: waybill.JitterShare},
	}
	for i := range good {
		if p := good[i].Validate("Retry"); len(p) > 0 {
			t.Errorf("good back-off %d: %v", i, p)
		}
	}
	for want, b := range map[string]waybill.Backoff{
		"Retry.Kind":      {Kind: 99},
		"Retry.Base: -":   {Base: -1},
		"Retry.Cap":       {Cap: 400 * 24 * time.Hour},
		"Retry.Factor":    {Factor: 0.5},
		"Retry.Base: 10m": {Base: 10 * time.Minute},
		"Retry.Jitter":    {Jitter: 99},
		"Retry.Share":     {Share: math.NaN()},
		"Retry.Delays[1]": {Kind: waybill.BackoffDelays, Delays: []time.Duration{1, -1}},
		"Retry.Delays":    {Delays: []time.Duration{1}},
		"Retry.Custom":    {Kind: waybill.BackoffCustom},
	} {
		if p := b.Validate("Retry"); !slices.ContainsFunc(p, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%s: got %v", want, p)
		}
	}
	bad := waybill.Backoff{Kind: 99, Base: -1, Cap: -1, Factor: math.NaN(), Jitter: 99, Share: 2}
	if p := bad.Validate("Retry"); len(p) < 6 {
		t.Errorf("%d of 6 problems are reported: %v", len(p), p)
	}
}
