package cli

import (
	"runtime"
	"slices"
	"strconv"
	"time"
)

// benchResult is what bench shows.
type benchResult struct {
	Store          string `json:"store"`
	Transport      string `json:"transport"`
	Go             string `json:"go"`
	CPUs           int    `json:"cpus"`
	Messages       int    `json:"messages"`
	Size           int    `json:"size_bytes"`
	PerTransaction int    `json:"per_transaction"`
	Keys           int    `json:"keys"`
	Relays         int    `json:"relays"`
	BatchSize      int    `json:"batch_size"`
	Window         int    `json:"window"`
	Consumers      int    `json:"consumers"`
	Concurrency    int    `json:"concurrency"`
	Prefetch       int    `json:"prefetch"`
	Inbox          bool   `json:"inbox"`
	InOrder        bool   `json:"in_order"`
	Stage          phase  `json:"stage"`
	Drain          phase  `json:"drain"`
	Paced          phase  `json:"paced"`
	// Each of Staged messages was counted at least once, and Again deliveries came on top.
	Staged int `json:"staged"`
	Again  int `json:"again"`
}

// phase is a part of a measurement: how many messages a second, the CPU time of this process for 1,000 of them (0 =
// unknown), and how long calls or messages took.
type phase struct {
	PerSecond float64       `json:"per_second"`
	CPU       time.Duration `json:"cpu_ns_per_1000"`
	Took      latency       `json:"took"`
}

// latency sums up how long something took.
type latency struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	Max   time.Duration `json:"max_ns"`
}

// latencyOf sorts took.
func latencyOf(took []time.Duration) latency {
	if len(took) == 0 {
		return latency{}
	}
	slices.Sort(took)
	at := func(permille int) time.Duration { return took[(len(took)-1)*permille/1000] }
	return latency{len(took), at(500), at(990), at(999), took[len(took)-1]}
}

func (l latency) text(d time.Duration) string {
	if l.Count == 0 {
		return ""
	}
	return d.Round(time.Microsecond).String()
}

// newBenchResult returns a result with the settings of the measurement, and no figures yet.
func newBenchResult(c *command, o *benchOptions) benchResult {
	kind := func(name, kind string) string { return name + " (" + kind + ")" }
	store, _ := only("store", o.store, c.conf.stores)
	r := benchResult{
		Store: kind(store, c.conf.Stores[store].Text("kind")), Transport: "none", Go: runtime.Version(), CPUs: runtime.NumCPU(),
		Messages: o.messages, Size: o.size, PerTransaction: o.perTransaction, Keys: o.keys,
		Relays: o.relays, BatchSize: o.batchSize, Window: o.window, Consumers: o.consumers, Staged: o.messages + o.paced,
	}
	switch {
	case o.transport != "none":
		r.Transport = kind(o.transport, c.conf.Transports[o.transport].Text("kind"))
	case o.consumers > 0:
		r.Transport = kind("embedded", "memory")
	}
	if o.consumers > 0 {
		r.Concurrency, r.Prefetch, r.Inbox, r.InOrder = o.concurrency, o.prefetch, o.inbox, o.inOrder
	}
	return r
}

func (c *command) showBench(r *benchResult) error {
	if c.json {
		return c.writeJSON(r)
	}
	say(c.io.Out, "store %s, transport %s, %s, %d CPUs\n", clean(r.Store), clean(r.Transport), r.Go, r.CPUs)
	keys, until := "without keys", "confirm"
	if r.Keys > 0 {
		keys = counted(r.Keys, "key")
	}
	say(c.io.Out, "%s of %s, %d in a transaction, %s\n", counted(r.Messages, "message"), counted(r.Size, "byte"), r.PerTransaction, keys)
	say(c.io.Out, "%s: batch size %d, window %d\n", counted(r.Relays, "relay"), r.BatchSize, r.Window)
	if r.Consumers > 0 {
		until = "handled"
		prefetch := "not set"
		if r.Prefetch > 0 {
			prefetch = strconv.Itoa(r.Prefetch)
		}
		say(c.io.Out, "%s: concurrency %d, prefetch %s, inbox %t, in order %t\n", counted(r.Consumers, "consumer"), r.Concurrency, prefetch, r.Inbox, r.InOrder)
	}
	row := func(name string, p phase) []string {
		perSecond, cpu := "", ""
		if p.PerSecond > 0 {
			perSecond = grouped(int64(p.PerSecond))
		}
		if p.CPU > 0 {
			cpu = p.CPU.Round(100 * time.Microsecond).String()
		}
		l := p.Took
		return []string{name, perSecond, cpu, strconv.Itoa(l.Count), l.text(l.P50), l.text(l.P99), l.text(l.P999), l.text(l.Max)}
	}
	err := c.table([]string{"PHASE", "MESSAGES/S", "CPU/1,000", "COUNT", "P50", "P99", "P99.9", "MAX"}, [][]string{
		row("stage: transactions", r.Stage),
		row("drain: publish calls", r.Drain),
		row("paced: commit to "+until, r.Paced),
	})
	say(c.io.Out, "%s staged, each one %s; %s came again\n", counted(r.Staged, "message"), map[bool]string{false: "confirmed", true: "handled"}[r.Consumers > 0], grouped(int64(r.Again)))
	return err
}
