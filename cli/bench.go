package cli

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// benchName is the route and the topic of the messages of bench. No other route is touched.
const benchName = "waybill-bench"

// benchOptions are the flags of bench.
type benchOptions struct {
	store, transport, topic      string
	messages, size, batch, alone int
	keys                         int
	besideWaiting                bool
}

func (c *command) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use: "bench", Short: "measure how fast a store and a transport are here", Args: cobra.NoArgs,
		Long: `bench stages messages into a store, drains them through a relay to a transport or to nowhere, and shows rates and
latencies. It uses a route of its own, and removes what it made. It refuses a store in which messages wait, since it
would slow them down, unless it is told to run beside them.`,
		RunE: c.onStore(&o.store, func(ctx context.Context, s *Store, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if s.Unit == nil {
				return withCode(ExitUsage, "this store cannot stage messages for a command")
			}
			counter, err := able[admin.Counter](s.Outbox, "store", "count its records")
			if err != nil {
				return err
			}
			counts, err := c.counts(ctx, counter, nil)
			if err != nil {
				return err
			}
			if n, _ := waiting(counts); n > 0 && !o.besideWaiting {
				return withCode(ExitRefused, "the store has %s waiting: give --beside-waiting if bench may slow them down", records(int(n)))
			}
			b := &bench{c: c, o: o, store: s, counter: counter, out: &benchPublisher{}}
			remove, err := b.connect(ctx)
			if err != nil {
				return err
			}
			result, err := b.run(ctx)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			for _, undo := range []func(context.Context) error{b.clean, remove} {
				if lost := undo(ctx); lost != nil && err == nil {
					err = fmt.Errorf("bench could not remove what it made: %w", lost)
				}
			}
			if err != nil {
				return err
			}
			return c.showBench(result)
		}),
	}
	storeFlag(cmd, &o.store)
	c.progressFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&o.transport, "transport", "none", "name in transports, or none")
	fl.StringVar(&o.topic, "topic", benchName, "topic; name one that a queue takes if the transport has no place of its own for bench")
	fl.IntVar(&o.messages, "messages", 10_000, "messages, at most 10000000")
	fl.IntVar(&o.size, "size", 256, "bytes of a body, at most 1048576")
	fl.IntVar(&o.batch, "batch", 100, "messages staged in one transaction, at most 1000")
	fl.IntVar(&o.keys, "keys", 0, "number of keys; 0 = messages without a key")
	fl.IntVar(&o.alone, "alone", 50, "messages staged one by one at the end, to see how long each takes from commit to confirm, at most 10000")
	fl.BoolVar(&o.besideWaiting, "beside-waiting", false, "run although messages wait in the store")
	return cmd
}

func (o *benchOptions) check() error {
	var p problems
	p.between("--messages", o.messages, 1, 10_000_000)
	p.between("--size", o.size, 0, 1<<20)
	p.between("--batch", o.batch, 1, 1000)
	p.between("--keys", o.keys, 0, 1_000_000)
	p.between("--alone", o.alone, 0, 10_000)
	return p.err()
}

// benchResult is what bench shows.
type benchResult struct {
	Store     string  `json:"store"`
	Transport string  `json:"transport"`
	Go        string  `json:"go"`
	CPUs      int     `json:"cpus"`
	Messages  int     `json:"messages"`
	Size      int     `json:"size_bytes"`
	Batch     int     `json:"batch"`
	Keys      int     `json:"keys"`
	Stage     phase   `json:"stage"`
	Drain     phase   `json:"drain"`
	Alone     latency `json:"alone"`
}

// phase is a part of a measurement; the latencies are those of its calls.
type phase struct {
	PerSecond float64 `json:"per_second"`
	Calls     latency `json:"calls"`
}

func (c *command) showBench(r *benchResult) error {
	if c.json {
		return c.writeJSON(r)
	}
	say(c.io.Out, "store %s, transport %s, %s, %d CPUs\n", clean(r.Store), clean(r.Transport), r.Go, r.CPUs)
	keys := "without keys"
	if r.Keys > 0 {
		keys = counted(r.Keys, "key")
	}
	say(c.io.Out, "%s of %s, %d in a transaction, %s\n", counted(r.Messages, "message"), counted(r.Size, "byte"), r.Batch, keys)
	row := func(name string, rate float64, l latency) []string {
		perSecond := ""
		if rate > 0 {
			perSecond = grouped(int64(rate))
		}
		return []string{name, perSecond, grouped(int64(l.Count)), l.text(l.P50), l.text(l.P99), l.text(l.Max)}
	}
	return c.table([]string{"PHASE", "MESSAGES/S", "CALLS", "P50", "P99", "MAX"}, [][]string{
		row("stage: transactions", r.Stage.PerSecond, r.Stage.Calls),
		row("drain: publish calls", r.Drain.PerSecond, r.Drain.Calls),
		row("alone: commit to confirm", 0, r.Alone),
	})
}

// message returns the i-th message.
func (b *bench) message(i int) waybill.Message {
	opts := []waybill.MessageOption{waybill.Routes(benchName)}
	if b.o.keys > 0 {
		opts = append(opts, waybill.Key(fmt.Sprintf("key-%d", i%b.o.keys)))
	}
	return waybill.RawMessage(b.o.topic, "application/octet-stream", make([]byte, b.o.size), opts...)
}

// label names what is measured.
func (b *bench) label() benchResult {
	conf, kind := b.c.conf, func(name, kind string) string { return name + " (" + kind + ")" }
	store, _ := only("store", b.o.store, conf.stores)
	r := benchResult{
		Store: kind(store, conf.Stores[store].Text("kind")), Transport: "none", Go: runtime.Version(), CPUs: runtime.NumCPU(),
		Messages: b.o.messages, Size: b.o.size, Batch: b.o.batch, Keys: b.o.keys,
	}
	if b.out.to != nil {
		r.Transport = kind(b.o.transport, conf.Transports[b.o.transport].Text("kind"))
	}
	return r
}

// connect opens the transport and makes the place for the messages. It returns what removes that.
func (b *bench) connect(ctx context.Context) (remove func(context.Context) error, err error) {
	nothing := func(context.Context) error { return nil }
	if b.o.transport == "none" {
		return nothing, nil
	}
	t, err := b.c.openTransport(ctx, b.o.transport, b.c.quiet())
	if err != nil {
		return nil, err
	}
	ctx, cancel := b.c.limited(ctx)
	defer cancel()
	if checker, ok := core.As[core.Checker](t.Publisher); ok {
		if err := checker.Check(ctx); err != nil {
			return nil, err
		}
	}
	b.out.to = t.Publisher
	switch {
	case b.o.topic != benchName:
		return nothing, nil
	case t.Sink == nil:
		return nil, withCode(ExitUsage, "this transport has no place of its own for bench: name a --topic that a queue takes, and empty that queue afterwards")
	}
	return t.Sink(ctx, b.o.topic)
}
