package kafka

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"

	"github.com/waybill-go/waybill/core"
)

// Transport is a Kafka transport. It is safe for concurrent use. It is an [admin.ParkedQueue], which lists the oldest
// message first.
type Transport struct {
	parkedQueue

	opts     Options
	seeds    []string
	admin    *kadm.Client
	link     *link
	bindings *bindings
	life     context.Context //nolint:containedctx // of the transport; it ends by Close
	end      context.CancelFunc
	known    atomic.Pointer[settings]
	opening  chan struct{} // holds a token while somebody opens
	opened   atomic.Bool
	client   *kgo.Client   // publishes, once opened; each receiver has another one
	soloing  chan struct{} // holds a token while a record is sent alone
	looking  sync.Mutex
	looked   time.Time // the settings were read again; looking guards it

	closeOnce sync.Once
	mu        sync.Mutex
	receivers map[*receiver]struct{}
	flights   map[string]*flight // by message id
	late      lateResults
	solo      *kgo.Client // sends single records, once there was one
	replaying sync.Mutex  // see ReplayParked
}

var (
	_ core.Transport    = (*Transport)(nil)
	_ core.Checker      = (*Transport)(nil)
	_ core.Describer    = (*Transport)(nil)
	_ admin.ParkedQueue = (*Transport)(nil)
	_ core.LeaseWatcher = (*receiver)(nil)
)

// Dial connects to the brokers at addresses, host:port with commas between them, and returns a transport that
// reconnects by itself. It makes the log of the bus if it is missing, and reads its settings, unless Options.Lazy. An
// error is of class outage, and matches waybill.ErrMisconfigured if an operator must repair something.
func Dial(ctx context.Context, addresses string, opts Options) (*Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Transport{
		opts: opts, seeds: strings.FieldsFunc(addresses, func(r rune) bool { return r == ',' || r == ' ' }), link: &link{},
		receivers: map[*receiver]struct{}{}, flights: map[string]*flight{}, opening: make(chan struct{}, 1),
		soloing: make(chan struct{}, 1),
	}
	t.parkedQueue = t.walks()
	t.known.Store(&settings{maxMessage: defaultMaxBytes, minInSync: 1, retention: opts.Retention})
	if len(t.seeds) == 0 {
		return nil, waybill.Invalid("waybill/kafka: dial", "addresses: is empty; name a broker as host:port")
	}
	asker, err := t.newClient(t.link)
	if err != nil {
		return nil, err
	}
	if off, _ := asker.OptValue(kgo.DisableIdempotentWrite).(bool); off {
		asker.Close()
		return nil, waybill.Invalid("waybill/kafka: client", "Options.Client: has kgo.DisableIdempotentWrite, without which messages change places "+
			"and have copies without end; leave it out")
	}
	t.admin, t.bindings = kadm.NewClient(asker), newBindings(t)
	t.life, t.end = context.WithCancel(context.WithoutCancel(ctx))
	if opts.Lazy {
		ctx, cancel := context.WithTimeout(ctx, moment)
		defer cancel()
		if s, err := t.look(ctx); err == nil {
			t.known.Store(&s)
		}
	} else if err := t.open(ctx); err != nil {
		_ = t.Close(ctx)
		return nil, err
	}
	return t, nil
}

// settings returns the known settings of the log of the bus.
func (t *Transport) settings() settings { return *t.known.Load() }

// open makes the logs of the bus if they are missing, reads their settings, and makes the client that publishes.
func (t *Transport) open(ctx context.Context) error {
	const op = "open the bus"
	if t.opened.Load() {
		return nil
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	select {
	case t.opening <- struct{}{}:
		defer func() { <-t.opening }()
	case <-ctx.Done():
		return t.link.because(op, context.Cause(ctx))
	}
	switch {
	case t.life.Err() != nil:
		return closed(op)
	case t.opened.Load():
		return nil
	}
	if err := t.declare(ctx, op, map[string]bool{t.opts.Bus: false, t.opts.bindings(): true}, !t.opts.Passive); err != nil {
		return err
	}
	s, err := t.look(ctx)
	if err != nil {
		return err
	}
	if t.client, err = t.newProducer(min(s.maxMessage, maxRequest)); err != nil {
		return err
	}
	t.known.Store(&s)
	t.opened.Store(true)
	return nil
}

// maxRequest is the brokers' default bound of a request.
const maxRequest = 100 << 20

// newProducer returns a client that publishes, in batches of at most some bytes.
func (t *Transport) newProducer(batchBytes int) (*kgo.Client, error) {
	return t.newClient(t.link, kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(int32(batchBytes)), kgo.ProduceRequestTimeout(produceTimeout),
		kgo.MaxBufferedRecords(1<<30), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
}

// newClient returns a client of the caller's options, and more. The client's own defaults are idempotent and wait for
// all replicas in sync; it never makes a topic.
func (t *Transport) newClient(l *link, more ...kgo.Opt) (*kgo.Client, error) {
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(t.seeds...), kgo.ClientID("waybill"), kgo.WithHooks(l), kgo.RequestTimeoutOverhead(2 * time.Second),
		kgo.DialTimeout(min(t.opts.Timeout, 5*time.Second)), kgo.RetryTimeout(t.opts.Timeout), kgo.MetadataMinAge(250 * time.Millisecond), kgo.MetadataMaxAge(time.Minute),
	}, t.opts.Client...)
	c, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		return nil, waybill.Invalid("waybill/kafka: client", "Options.Client: "+err.Error())
	}
	return c, nil
}

// Describe names the system for telemetry.
func (t *Transport) Describe() core.Description {
	d := core.Description{System: "kafka", Exchange: t.opts.Bus}
	if host, port, err := net.SplitHostPort(t.seeds[0]); err == nil {
		d.Address = host
		d.Port, _ = strconv.Atoi(port)
	}
	return d
}

// Check reports whether the logs of the bus are there, as they must be, and whether each partition has a leader and
// enough replicas in sync to be written.
func (t *Transport) Check(ctx context.Context) error {
	if t.life.Err() != nil {
		return closed("check")
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if err := t.open(ctx); err != nil {
		return err
	}
	s, err := t.look(ctx)
	if err == nil {
		t.known.Store(&s)
		err = t.writable(ctx, s.minInSync)
	}
	return err
}

// bounded returns ctx with the limit of one request. It ends with the transport.
func (t *Transport) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	stop := context.AfterFunc(t.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// Close ends receivers and publishes in progress, and closes the connections. It is idempotent.
func (t *Transport) Close(ctx context.Context) error {
	var err error
	t.closeOnce.Do(func() {
		t.mu.Lock()
		list := make([]*receiver, 0, len(t.receivers))
		for r := range t.receivers {
			list = append(list, r)
		}
		t.receivers = nil
		t.mu.Unlock()
		errs := make([]error, len(list))
		var wg sync.WaitGroup
		for i, r := range list {
			wg.Go(func() { errs[i] = r.Close(ctx) })
		}
		wg.Wait()
		t.end()
		t.opening <- struct{}{} // nobody opens any more
		if t.opened.Load() {
			t.client.Close()
		}
		<-t.opening
		t.mu.Lock()
		solo := t.solo // there will be no other
		t.mu.Unlock()
		if solo != nil {
			solo.Close()
		}
		t.admin.Close()
		err = errors.Join(errs...)
	})
	return err
}
