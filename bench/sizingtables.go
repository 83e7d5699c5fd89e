package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// axisTable is one axis: everything else is as in the stated default.
type axisTable struct {
	title, axis string
	cells       []cell
}

// axes are the tables of the guide.
func axes() []axisTable {
	both := axisTable{title: "Relays and consumers", axis: "relays, consumers"}
	for _, consumers := range []string{"0", "1", "2", "4"} {
		for _, relays := range []string{"1", "2", "4"} {
			c := cell{name: relays + ", " + consumers, consumed: consumers != "0", args: []string{"--relays", relays}}
			if c.consumed {
				c.args = append(c.args, "--consumers", consumers)
			}
			both.cells = append(both.cells, c)
		}
	}
	keys := axisTable{title: "Order by key", axis: "keys", cells: []cell{
		{name: "none"},
		{name: "1,000", args: words("--keys 1000")},
		{name: "10", args: words("--keys 10"), messages: 10_000},
		{name: "1", args: words("--keys 1"), messages: 2000},
		{name: "1, pipelined", args: words("--keys 1"), settings: []string{"transports.bus.pipeline_keys=true"}},
		{name: "1,000, one consumer", consumed: true, args: words("--keys 1000")},
		{name: "1,000, one consumer in order", consumed: true, args: words("--keys 1000 --in-order")},
		{name: "10, one consumer in order", consumed: true, args: words("--keys 10 --in-order")},
		{name: "1, one consumer in order", consumed: true, args: words("--keys 1 --in-order"), messages: 2000},
	}}
	concurrency := vary("Concurrency", "concurrency", "--concurrency", true, "1", "5", "10", "20", "50")
	concurrency.cells = append(concurrency.cells, cell{name: "10, without inbox", consumed: true, args: words("--inbox=false")})
	return []axisTable{
		both,
		vary("Batch size", "batch_size", "--batch-size", false, "1", "20", "100", "500", "2000"),
		vary("Window", "window", "--window", false, "1", "2", "4", "16"),
		concurrency,
		vary("Prefetch", "prefetch", "--prefetch", true, "10", "20", "50", "200", "1000"),
		bodies(),
		keys,
		{title: "The three settings", axis: "settings", cells: []cell{
			{name: "low latency", consumed: true, args: words("--batch-size 100 --concurrency 20 --prefetch 20")},
			{
				name: "high throughput", consumed: true, args: words("--batch-size 2000 --window 8 --concurrency 20 --prefetch 500"),
				settings: []string{"transports.bus.pipeline_keys=true"},
			},
			{name: "critical messages", consumed: true, args: words("--batch-size 100 --window 2 --relays 2 --consumers 2")},
		}},
	}
}

var words = strings.Fields

func vary(title, axis, flag string, consumed bool, values ...string) axisTable {
	t := axisTable{title: title, axis: axis}
	for _, v := range values {
		t.cells = append(t.cells, cell{name: v, consumed: consumed, args: []string{flag, v}})
	}
	return t
}

// bodySizes are the bytes of a body, here and on the disk.
var bodySizes = []int{256, 1024, 4096, 16_384, 65_536}

func bodies() axisTable {
	t := axisTable{title: "Body size", axis: "bytes"}
	for _, n := range bodySizes {
		t.cells = append(t.cells, cell{name: strconv.Itoa(n), args: []string{"--size", strconv.Itoa(n)}, messages: min(confirmedMessages, 100<<20/n)})
	}
	return t
}

// rawLimits are rates of what everything is built on, without Waybill.
type rawLimits struct{ publish, deletes, handle float64 }

func (z *sizer) rawLimits(ctx context.Context) (l rawLimits, err error) {
	if l.publish, err = z.rawPublish(ctx, 256); err != nil {
		return l, err
	}
	s, err := selectAndDelete(ctx, z.env, drainCase{backlog: z.some(100_000), body: 256})
	if err != nil {
		return l, err
	}
	l.deletes = s.value
	s, err = consumed(ctx, z.env, z.some(10_000), handLoop)
	l.handle = s.value
	return l, err
}

func (z *sizer) rawPublish(ctx context.Context, body int) (float64, error) {
	n := z.some(min(50_000, 200<<20/body))
	s, err := withQueue(ctx, z.env, n, func() (sample, error) { return rawPublish(ctx, z.env.url, n, make([]byte, body)) })
	return s.value, err
}

// tables measures everything, and returns it as Markdown.
func (z *sizer) tables(ctx context.Context) (string, error) {
	var b strings.Builder
	before, err := z.rawLimits(ctx)
	if err != nil {
		return "", err
	}
	var rates []string
	all := axes()
	for i := range all {
		for j := range all[i].cells {
			c := &all[i].cells[j]
			if z.brief && (i > 0 && i < len(all)-1 || j < len(all[i].cells)-1) {
				continue
			}
			if all[i].axis == "bytes" {
				if c.raw, err = z.rawPublish(ctx, bodySizes[j]); err != nil {
					return "", err
				}
			}
			if err := z.run(ctx, c); err != nil {
				return "", err
			}
		}
	}
	for _, name := range []string{"first", "second", "third"} { // the default again and again, to see the noise
		c := cell{name: name}
		if err := z.run(ctx, &c); err != nil {
			return "", err
		}
		rates = append(rates, rounded(c.got.Drain.PerSecond))
	}
	after, err := z.rawLimits(ctx)
	if err != nil {
		return "", err
	}
	raw := rawLimits{(before.publish + after.publish) / 2, (before.deletes + after.deletes) / 2, (before.handle + after.handle) / 2}
	fmt.Fprintf(&b, "%d cores for everything: the command, Postgres and RabbitMQ. %s. The load of the machine before the run was\n"+
		"%s. If that is above the cores, others worked meanwhile, and only ratios mean something.\n\n"+
		"A cell drains %s messages with consumers, %s without, unless they are large or of few keys, and stages %s more,\n"+
		"400 a second.\n\n", runtime.NumCPU(), runtime.Version(), z.load,
		rounded(float64(z.some(consumedMessages))), rounded(float64(z.some(confirmedMessages))), rounded(float64(z.some(pacedMessages))))
	fmt.Fprintf(&b, "| raw limit | before | after |\n|---|---|---|\n")
	for _, r := range []struct {
		name          string
		before, after float64
	}{
		{"publish: amqp091-go, one channel, pipelined confirms, a quorum queue", before.publish, after.publish},
		{"read and delete: a loop of SELECT and DELETE, 500 rows a transaction", before.deletes, after.deletes},
		{"handle: a hand-written consumer with a table of marks, ten at a time", before.handle, after.handle},
	} {
		fmt.Fprintf(&b, "| %s | %s/s | %s/s |\n", r.name, rounded(r.before), rounded(r.after))
	}
	fmt.Fprintf(&b, "\nThe default without consumers, three more times: %s messages/s.\n", strings.Join(rates, ", "))
	for _, t := range all {
		t.write(&b, raw)
	}
	if err := z.disk(ctx, &b); err != nil {
		return "", err
	}
	err = z.backlog(ctx, &b, raw)
	return b.String(), err
}

// write writes a table. Cells that were left out have no row.
func (t axisTable) write(b *strings.Builder, raw rawLimits) {
	fmt.Fprintf(b, "\n### %s\n\n| %s | messages/s | of raw | p50 | p99 | p99.9 | CPU ms / 1,000: waybill | servers | again |\n", t.title, t.axis)
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range t.cells {
		if c.got.Staged == 0 {
			continue
		}
		limit := raw.publish
		switch {
		case c.raw > 0:
			limit = c.raw
		case c.consumed:
			limit = raw.handle
		}
		p := c.got.Paced.Took
		fmt.Fprintf(b, "| %s | %s | %.2f | %s | %s | %s | %s | %s | %d |\n", c.name, rounded(c.got.Drain.PerSecond), c.got.Drain.PerSecond/limit,
			millis(p.P50), millis(p.P99), millis(p.P999), cpuMillis(c.got.Drain.CPU), cpuMillis(c.servers), c.got.Again)
	}
}

// rounded shows three digits: more are noise.
func rounded(v float64) string {
	n, unit := int(v), 1
	for n/unit >= 1000 {
		unit *= 10
	}
	n = (n + unit/2) / unit * unit
	if n < 1000 {
		return strconv.Itoa(n)
	}
	if n < 1_000_000 {
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	return fmt.Sprintf("%d,%03d,%03d", n/1_000_000, n/1000%1000, n%1000)
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1e3) }

func cpuMillis(d time.Duration) string { return fmt.Sprintf("%.0f", d.Seconds()*1e3) }

const (
	beginMark = "<!-- measured: begin; make rewrites this part -->\n"
	endMark   = "<!-- measured: end -->\n"
)

// rewrite puts text between the marks of a page.
func rewrite(page, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), beginMark)
	_, tail, ended := strings.Cut(rest, endMark)
	if !ok || !ended {
		return fmt.Errorf("%s lacks the marks %q and %q: put them where the tables belong", page, beginMark, endMark)
	}
	return os.WriteFile(page, []byte(head+beginMark+"\n"+text+"\n"+endMark+tail), 0o644)
}
