package nats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/repeats"
)

// Transport is a NATS JetStream transport. It is safe for concurrent use. It is an [admin.ParkedQueue], which makes a
// request for each message that it looks at.
type Transport struct {
	parkedQueue

	opts       Options
	current    atomic.Pointer[session]
	dialled    string // the address, if the connection is the transport's own
	connection []nats.Option

	topics, queues, parked string // the subjects' beginnings: {bus}.t., {bus}.q. and {bus}-parked.
	maxMsgSize             int    // of the stream; 0 or less = none
	address                core.Description
	routes                 routes
	repeats                repeats.Memory

	done      chan struct{}
	followed  chan struct{} // closed when no session follows the current one
	closeOnce sync.Once
	mu        sync.Mutex
	receivers map[*receiver]struct{}
	replaying sync.Mutex // see ReplayParked
}

var (
	_ core.Transport    = (*Transport)(nil)
	_ core.Checker      = (*Transport)(nil)
	_ core.Describer    = (*Transport)(nil)
	_ admin.ParkedQueue = (*Transport)(nil)
)

// reconnectWait is between two attempts to connect again.
const reconnectWait = 250 * time.Millisecond

// Dial connects to the server at address, one or several URLs with commas between them, and returns a transport that
// reconnects by itself. An error has a class: outage if the server cannot be reached, and it matches
// waybill.ErrMisconfigured if an operator must repair something. It never holds the URL.
func Dial(ctx context.Context, address string, opts Options) (*Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	// Without a buffer a call that failed while the connection was away does not happen later.
	set := append([]nats.Option{
		nats.Name("waybill"), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2), nats.IgnoreAuthErrorAbort(), nats.Timeout(opts.Timeout),
	}, opts.Connection...)
	nc, err := connect(ctx, address, set)
	if err != nil {
		return nil, err
	}
	t, err := open(ctx, nc, opts, address, set)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return t, nil
}

// New returns a transport on the caller's connection, which it does not close. Options.Connection is not used.
func New(ctx context.Context, nc *nats.Conn, opts Options) (*Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if nc == nil {
		return nil, waybill.Invalid("waybill/nats: new", "nc: is nil; connect first, or use Dial")
	}
	return open(ctx, nc, opts, "", nil)
}

// open returns a transport on nc, which was dialled at an address with the options set, or is the caller's.
func open(ctx context.Context, nc *nats.Conn, opts Options, dialled string, set []nats.Option) (*Transport, error) {
	t := &Transport{
		opts: opts, dialled: dialled, connection: set, topics: opts.Bus + ".t.", queues: opts.Bus + ".q.", parked: opts.Bus + "-parked.",
		routes: routes{lock: make(chan struct{}, 1)}, done: make(chan struct{}), followed: make(chan struct{}),
		receivers: map[*receiver]struct{}{}, address: core.Description{System: "nats", Exchange: opts.Bus},
	}
	t.parkedQueue = t.walks()
	if host, port, err := net.SplitHostPort(nc.ConnectedAddr()); err == nil {
		t.address.Address = host
		t.address.Port, _ = strconv.Atoi(port)
	}
	if v := nc.ConnectedServerVersion(); tooOld(v) {
		return nil, misconfigured("new", "the server's version is %q, 2.10 is needed: use a newer one", v)
	}
	s, err := t.newSession(nc)
	if err != nil {
		return nil, err
	}
	t.current.Store(s)
	stream, err := t.declareStreams(ctx)
	if err == nil {
		t.maxMsgSize = int(stream.Config.MaxMsgSize)
		_, err = t.bounds(s)
	}
	if err != nil {
		_ = s.advisories.Unsubscribe() // fails only on a closed connection
		return nil, err
	}
	go t.follow(s)
	return t, nil
}

// tooOld reports whether a server of version v lacks consumers with several filters. An unreadable version is not too
// old.
func tooOld(v string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(v, "%d.%d", &major, &minor)
	return n == 2 && (major < 2 || major == 2 && minor < 10)
}

// Describe names the system for telemetry.
func (t *Transport) Describe() core.Description { return t.address }

// Check reports whether the streams are there, as they must be.
func (t *Transport) Check(ctx context.Context) error {
	if t.ended() {
		return closed("check")
	}
	if _, err := t.declareStreams(ctx); err != nil {
		return err
	}
	_, err := t.bounds(t.current.Load())
	return err
}

func (t *Transport) ended() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// bounded returns ctx with the limit of one request.
func (t *Transport) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.opts.Timeout)
}

// Close ends receivers and publishes in progress, and closes the connection if Dial has opened it. It is idempotent.
func (t *Transport) Close(ctx context.Context) error {
	var err error
	t.closeOnce.Do(func() {
		t.mu.Lock()
		close(t.done)
		list := make([]*receiver, 0, len(t.receivers))
		for r := range t.receivers {
			list = append(list, r)
		}
		t.mu.Unlock()
		errs := make([]error, len(list))
		var wg sync.WaitGroup
		for i, r := range list {
			wg.Go(func() { errs[i] = r.Close(ctx) })
		}
		wg.Wait()
		<-t.followed
		s := t.current.Load()
		_ = s.advisories.Unsubscribe() // fails only on a closed connection
		if t.dialled != "" {
			s.nc.Close()
		}
		err = errors.Join(errs...)
	})
	return err
}

// routes is what the publisher knows of the queues.
type routes struct {
	stale atomic.Bool

	lock     chan struct{} // holds a token while somebody has the lock
	at       time.Time
	patterns []string
	known    map[string]bool // what was asked since at
}
