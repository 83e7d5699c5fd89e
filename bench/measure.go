package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// sample is one run: a figure, and its cost.
type sample struct {
	value float64 // a rate or a duration in seconds, as the row says
	msgs  int
	cpu   cpuTimes
}

// row is one line of the table.
type row struct {
	name      string
	ours, raw []sample
	// "msg/s": more is better; "ms", "µs": the value is in seconds, less is better; "cores"; "MB": the value is in
	// bytes
	unit   string
	target string
	note   string
}

// pairs measures raw and ours in turn, n times, so that a drift of the machine's speed meets both.
func pairs(ctx context.Context, n int, raw, ours func(context.Context) (sample, error)) (r row, err error) {
	for range n {
		a, err := raw(ctx)
		if err != nil {
			return r, fmt.Errorf("raw: %w", err)
		}
		b, err := ours(ctx)
		if err != nil {
			return r, fmt.Errorf("waybill: %w", err)
		}
		r.raw, r.ours = append(r.raw, a), append(r.ours, b)
	}
	return r, nil
}

func (r row) markdown() string {
	ours, raw := median(r.ours, value), median(r.raw, value)
	name := r.name
	if r.note != "" {
		name += " (" + r.note + ")"
	}
	return fmt.Sprintf("| %s | %s | %s | %.2f | %s | %s | %s |", name, r.show(ours), r.show(raw), ours/raw, r.target, costs(r.ours), costs(r.raw))
}

func (r row) show(v float64) string {
	switch r.unit {
	case "ms":
		return fmt.Sprintf("%.2f ms", v*1e3)
	case "cores":
		return fmt.Sprintf("%.2f cores", v)
	case "MB":
		return fmt.Sprintf("%.0f MB", v/1e6)
	case "µs":
		return fmt.Sprintf("%.0f µs", v*1e6)
	default:
		return fmt.Sprintf("%.0f %s", v, r.unit)
	}
}

func value(s sample) float64 { return s.value }

func median(samples []sample, of func(sample) float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	vs := make([]float64, len(samples))
	for i, s := range samples {
		vs[i] = of(s)
	}
	slices.Sort(vs)
	if n := len(vs); n%2 == 0 {
		return (vs[n/2-1] + vs[n/2]) / 2
	}
	return vs[len(vs)/2]
}

// costs shows the CPU seconds per 1,000 messages: the sum, and each process.
func costs(samples []sample) string {
	if len(samples) == 0 || samples[0].msgs == 0 {
		return "–"
	}
	per := func(of func(cpuTimes) time.Duration) float64 {
		return median(samples, func(s sample) float64 { return of(s.cpu).Seconds() * 1000 / float64(s.msgs) })
	}
	parts := []string{fmt.Sprintf("%.3f", per(func(c cpuTimes) time.Duration { return c.self }))}
	parts = append(parts, fmt.Sprintf("%.3f", per(func(c cpuTimes) time.Duration { return c.postgres })))
	parts = append(parts, fmt.Sprintf("%.3f", per(func(c cpuTimes) time.Duration { return c.rabbitmq })))
	return fmt.Sprintf("%.3f (%s)", per(cpuTimes.total), strings.Join(parts, " + "))
}

// percentile returns the p-th percentile (0 to 1) of ds, which it sorts.
func percentile(ds []time.Duration, p float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[min(int(p*float64(len(ds))), len(ds)-1)]
}
