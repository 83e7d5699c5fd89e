package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/relay"
)

// benchName is the route, the topic, the queue and the inbox's consumer name of bench. No other route is touched.
const benchName = "waybill-bench"

// benchOptions are the flags of bench.
type benchOptions struct {
	store, transport, topic              string
	messages, size, perTransaction, keys int
	paced, rate                          int
	relays, batchSize, window            int
	consumers, concurrency, prefetch     int
	inbox, inOrder, besideWaiting        bool
}

func (c *command) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use: "bench", Short: "measure how fast a store and a transport are here", Args: cobra.NoArgs,
		Long: `bench stages messages into a store and lets relays drain them to a transport or to nowhere. Then it stages more, one by
one at a steady rate, to see how long each takes. With --consumers it receives them, too: a message counts when its
handler is done, else when it is confirmed. bench fails unless every message counts, and tells how many came again.

It uses a route of its own, with --consumers a queue of its own, and removes what it made. It refuses a store in which
messages wait, since it would slow them down, unless it is told to run beside them. If the configuration has no store, it
takes an SQLite file that it deletes.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			remove, err := c.embedStore(o.store)
			if err != nil {
				return err
			}
			defer func() { c.opened = append(c.opened, remove) }() // after the stores in it
			return c.onStore(&o.store, func(ctx context.Context, s *Store, _ []string) error { return c.bench(ctx, o, s) })(cmd, args)
		},
	}
	storeFlag(cmd, &o.store)
	c.progressFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&o.transport, "transport", "none", "name in transports; none = nowhere, or with --consumers a queue in this process")
	fl.StringVar(&o.topic, "topic", benchName, "topic; name one that a queue takes if the transport has no place of its own for bench")
	fl.IntVar(&o.messages, "messages", 10_000, "messages to drain, at most 10000000")
	fl.IntVar(&o.size, "size", 256, "bytes of a body, at most 1048576; they are random, so that nothing can compress them")
	fl.IntVar(&o.perTransaction, "per-transaction", 100, "messages staged in one transaction, at most 1000")
	fl.IntVar(&o.keys, "keys", 0, "number of keys; 0 = messages without a key")
	fl.IntVar(&o.paced, "paced", 500, "messages staged one by one after the drain, at most 100000")
	fl.IntVar(&o.rate, "rate", 200, "how many of these per second, at most 10000")
	fl.IntVar(&o.relays, "relays", 1, "relays, each with connections of its own, at most 16")
	fl.IntVar(&o.batchSize, "batch-size", relay.DefaultBatchSize, "BatchSize of the relays, at most 10000")
	fl.IntVar(&o.window, "window", relay.DefaultWindow, "Window of the relays, at most 256")
	fl.IntVar(&o.consumers, "consumers", 0, "consumers, each with connections of its own, at most 16; 0 = none")
	fl.IntVar(&o.concurrency, "concurrency", 10, "Concurrency of each consumer, at most 1000")
	fl.IntVar(&o.prefetch, "prefetch", 0, "Prefetch of each consumer, at most 65535; 0 = it adapts")
	fl.BoolVar(&o.inbox, "inbox", false, "the consumers handle through the inbox of the store: one transaction a message")
	fl.BoolVar(&o.inOrder, "in-order", false, "the consumers keep the order of a key")
	fl.BoolVar(&o.besideWaiting, "beside-waiting", false, "run although messages wait in the store")
	return cmd
}

func (o *benchOptions) check() error {
	var p problems
	p.between("--messages", o.messages, 1, 10_000_000)
	p.between("--size", o.size, 0, 1<<20)
	p.between("--per-transaction", o.perTransaction, 1, 1000)
	p.between("--keys", o.keys, 0, 1_000_000)
	p.between("--paced", o.paced, 0, 100_000)
	p.between("--rate", o.rate, 1, 10_000)
	p.between("--relays", o.relays, 1, 16)
	p.between("--batch-size", o.batchSize, 1, 10_000)
	p.between("--window", o.window, 1, 256)
	p.between("--consumers", o.consumers, 0, 16)
	p.between("--concurrency", o.concurrency, 1, 1000)
	p.between("--prefetch", o.prefetch, 0, 65_535)
	if o.prefetch > 0 && o.prefetch < o.concurrency {
		p.add("--prefetch: %d is less than --concurrency, %d: handlers would idle", o.prefetch, o.concurrency)
	}
	if o.consumers == 0 && o.inbox {
		p.add("--inbox: there are no consumers: give --consumers")
	}
	if o.consumers == 0 && o.inOrder {
		p.add("--in-order: there are no consumers: give --consumers")
	}
	return p.err()
}

// embedStore adds a store to a configuration without any: an SQLite file in a folder that remove deletes.
func (c *command) embedStore(name string) (remove func(context.Context) error, err error) {
	nothing := func(context.Context) error { return nil }
	conf, err := c.load()
	if err != nil || name != "" || len(conf.stores) > 0 {
		return nothing, err
	}
	dir, err := os.MkdirTemp("", "waybill-bench-")
	if err != nil {
		return nothing, err
	}
	c.set = append(c.set, "stores.embedded.kind=sqlite", "stores.embedded.path="+filepath.Join(dir, "bench.db"), "stores.embedded.auto_migrate=true")
	c.conf = nil
	return func(context.Context) error { return os.RemoveAll(dir) }, nil
}

// bench measures on s, and removes what it made there and at the transport.
func (c *command) bench(ctx context.Context, o benchOptions, s *Store) error {
	if s.Producer == nil {
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
	if n, _, _ := waiting(counts); n > 0 && !o.besideWaiting {
		return withCode(ExitRefused, "the store has %s waiting: give --beside-waiting if bench may slow them down", records(int(n)))
	}
	b := newBench(c, o, s, counter)
	result, err := b.run(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if lost := b.clean(ctx); lost != nil {
		err = errors.Join(err, fmt.Errorf("bench could not remove what it made: %w", lost))
	}
	if err != nil {
		return err
	}
	return c.showBench(result)
}
