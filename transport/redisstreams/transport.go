package redisstreams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/obs"
)

// Transport publishes to Redis Streams and receives from them. Make it with [Dial] or [New].
//
// It is an [admin.ParkedQueue]. The server moves each message that is replayed in one step. One that finds its queue
// full stays parked and ends the replay with an outage. A queue that does not exist is waybill.ErrNotFound.
type Transport struct {
	parkedQueue

	client  redis.UniversalClient
	waits   redis.UniversalClient // for commands that block on the server
	own     bool                  // Close closes the clients
	opts    Options
	keys    keys
	log     *obs.Logger
	routing atomic.Pointer[routing] // nil = not loaded

	closing chan struct{} // closed by Close

	mu        sync.Mutex // guards closed and receivers
	closed    bool
	receivers map[*receiver]struct{}
}

var (
	_ core.Transport    = (*Transport)(nil)
	_ core.Checker      = (*Transport)(nil)
	_ core.Describer    = (*Transport)(nil)
	_ admin.ParkedQueue = (*Transport)(nil)
)

// Dial connects to one server, by a URL such as redis://user:password@host:6379/0, or rediss:// for TLS. For a cluster
// or Sentinel make a client and pass it to [New]. It returns after [Transport.Check], unless Options.Lazy.
func Dial(ctx context.Context, url string, opts Options) (*Transport, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	ro, err := redis.ParseURL(url)
	if err != nil { // its text may hold the password
		return nil, waybill.Invalid("waybill/redisstreams: dial", "url: cannot be read; escape special characters in user and password "+
			"(net/url.UserPassword does); it must look like "+exampleURL)
	}
	switch {
	case ro.TLSConfig == nil && opts.TLS != nil:
		return nil, waybill.Invalid("waybill/redisstreams: dial", "url: Options.TLS is set, but the scheme is not rediss://")
	case opts.TLS != nil:
		name := ro.TLSConfig.ServerName
		if ro.TLSConfig = opts.TLS.Clone(); ro.TLSConfig.ServerName == "" {
			ro.TLSConfig.ServerName = name
		}
	}
	ro.CredentialsProviderContext = opts.Credentials
	// A command is not sent twice without our knowing: a message would come twice, a delivery be lost for HoldFor.
	ro.MaxRetries, ro.DialerRetries = -1, 1
	ro.DialTimeout, ro.ReadTimeout, ro.WriteTimeout = opts.Timeout, opts.Timeout, opts.Timeout
	ro.ContextTimeoutEnabled, ro.DisableIdentity = true, true
	ro.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	blocking := *ro
	blocking.PoolSize = maxReceivers
	t := newTransport(redis.NewClient(ro), redis.NewClient(&blocking), opts)
	t.own = true
	if opts.Lazy {
		return t, nil
	}
	if err := t.Check(ctx); err != nil {
		_ = t.Close(ctx)
		return nil, err
	}
	return t, nil
}

// maxReceivers bounds the connections that wait for messages, one for each receiver.
const maxReceivers = 1 << 14

// New returns a transport on a client of the caller's: for one server, a cluster, or Sentinel. It stays open when the
// transport is closed. Its pool needs one connection for each receiver, beside those for everything else. Its
// MaxRetries should be -1: otherwise a lost connection can make messages come twice, or later by HoldFor. It must not
// read from replicas.
func New(client redis.UniversalClient, opts Options) (*Transport, error) {
	if check.Nil(client) {
		return nil, waybill.Invalid("waybill/redisstreams: new", "client: is nil; pass one made by redis.NewClient or redis.NewClusterClient")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.TLS != nil {
		return nil, waybill.Invalid("waybill/redisstreams: new", "Options.TLS: has no effect on a client that is there; set it there")
	}
	if opts.Credentials != nil {
		return nil, waybill.Invalid("waybill/redisstreams: new", "Options.Credentials: has no effect on a client that is there; set it there")
	}
	return newTransport(client, client, opts.withDefaults()), nil
}

func newTransport(client, waits redis.UniversalClient, opts Options) *Transport {
	t := &Transport{
		client: client, waits: waits, opts: opts, keys: keysOf(opts.Bus), log: obs.NewLogger(opts.Logger),
		closing: make(chan struct{}), receivers: map[*receiver]struct{}{},
	}
	t.parkedQueue = t.walks()
	return t
}

// Traits implements core.Publisher.
func (t *Transport) Traits() core.PublisherTraits {
	return core.PublisherTraits{
		KeyOrder: core.KeyOrderPipelinedPrefix, Confirmed: true, DetectsUnroutable: true, MaxMessageBytes: t.opts.MaxMessageBytes,
		Durable: t.opts.Confirm != ConfirmStored,
		Synced:  t.opts.Confirm == ConfirmAlways || t.opts.Confirm == ConfirmSynced,
	}
}

// SubscriberTraits implements core.Subscriber.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{
		KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true, HoldFor: t.opts.HoldFor, SingleActive: true,
		Wildcards: core.WildcardsAll,
	}
}

// Describe implements core.Describer.
func (t *Transport) Describe() core.Description {
	d := core.Description{System: "redis", Exchange: t.opts.Bus}
	if c, ok := t.client.(*redis.Client); ok {
		if host, port, err := net.SplitHostPort(c.Options().Addr); err == nil {
			d.Address = host
			d.Port, _ = strconv.Atoi(port)
		}
	}
	return d
}

// Check implements core.Checker: it connects, reads the bindings, runs a script, and verifies that the server
// evicts nothing and is no replica that takes writes, and with ConfirmAlways that it syncs.
func (t *Transport) Check(ctx context.Context) error {
	const op = "check"
	if err := t.open(op); err != nil {
		return err
	}
	_, err := call(ctx, t, op, func(ctx context.Context) (any, error) {
		if _, err := loadRouting(ctx, t.client, t.keys); err != nil {
			return nil, err
		}
		err := emptyScript.Run(ctx, t.client, nil).Err()
		if err != nil {
			return nil, err
		}
		if t.opts.Confirm == ConfirmAlways {
			err = checkAlways(ctx, t.client)
		}
		if err == nil {
			err = t.checkServer(ctx)
		}
		return nil, err
	})
	if err != nil {
		return err
	}
	if cause := t.limitBelow(ctx, t.opts.MaxMessageBytes); cause != "" {
		t.log.Event(ctx, slog.LevelWarn, "redisstreams.message_limit", fmt.Sprintf("%s, but Options.MaxMessageBytes lets messages of up to %d bytes "+
			"through: larger ones than the server's limit fail; raise that, or set Options.MaxMessageBytes below it", cause, t.opts.MaxMessageBytes))
	}
	return nil
}

func checkAlways(ctx context.Context, client redis.UniversalClient) error {
	for name, want := range map[string]string{"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"} {
		got, err := client.ConfigGet(ctx, name).Result()
		if err != nil {
			return err
		}
		if got[name] != want {
			return misconfigured("check", "the server's %s is %q, but Options.Confirm is ConfirmAlways: set it to %q, or choose another kind of confirm",
				name, got[name], want)
		}
	}
	return nil
}

// checkServer refuses a server that may evict keys, and a replica that takes writes, which it drops when it hears from
// its primary. A user without the right to ask gets a warning, or an error if
// Options.Confirm wants everything verified.
func (t *Transport) checkServer(ctx context.Context) error {
	text, err := t.client.Info(ctx, "memory", "replication").Result()
	if err != nil {
		if _, answered := errors.AsType[redis.Error](err); !answered || t.opts.Confirm == ConfirmAlways {
			return err
		}
		t.log.Event(ctx, slog.LevelWarn, "redisstreams.unverified", "the server does not say whether it evicts keys: see that its maxmemory-policy is "+
			"noeviction and that it is no replica, and give the user +info", slog.Any("error", err))
		return nil
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
		return misconfigured("check", "the server's maxmemory-policy is %q with a maxmemory of %s bytes, so that it evicts confirmed messages and bindings: "+
			"set it to \"noeviction\"", policy, info["maxmemory"])
	}
	// A node of a cluster sends clients to the primary.
	if _, cluster := t.client.(*redis.ClusterClient); !cluster && info["role"] == "slave" && info["slave_read_only"] == "0" {
		return misconfigured("check", "the server is a replica with replica-read-only no: it takes messages and drops them when it syncs with its "+
			"primary: connect to the primary, and set replica-read-only to yes")
	}
	return nil
}

// Close implements core.Transport. Receivers release what they hold. A client that was passed to New stays open.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	open := make([]*receiver, 0, len(t.receivers))
	for r := range t.receivers {
		open = append(open, r)
	}
	t.mu.Unlock()
	if !first {
		return nil
	}
	close(t.closing)
	var wg sync.WaitGroup
	for _, r := range open {
		wg.Go(func() { _ = r.Close(ctx) })
	}
	wg.Wait()
	if !t.own {
		return nil
	}
	err := t.client.Close()
	if e := t.waits.Close(); err == nil {
		err = e
	}
	if err != nil {
		return outage("close", err)
	}
	return nil
}

// open returns an error after Close.
func (t *Transport) open(op string) error {
	select {
	case <-t.closing:
		return outage(op, waybill.ErrClosed)
	default:
		return nil
	}
}

// call runs fn, which asks the server, until it returns, ctx ends, or Options.Timeout is over. The driver does not stop
// when a context is cancelled, so fn may go on for a while: it must not use what is the caller's.
func call[T any](ctx context.Context, t *Transport, op string, fn func(context.Context) (T, error)) (T, error) {
	return callFor(ctx, t.opts.Timeout, op, fn)
}

// callFor is call with another limit. fn runs on a goroutine of its own. If its answer and the end of the time come
// together, the answer counts.
func callFor[T any](ctx context.Context, limit time.Duration, op string, fn func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, outage(op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	done := make(chan answer, 1)
	go func() {
		defer cancel()
		v, err := fn(ctx)
		done <- answer{v, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		select {
		case a = <-done:
		default:
			return none, outage(op, fmt.Errorf("%w (%w)", errNoAnswer, context.Cause(ctx)))
		}
	}
	if a.err != nil {
		return none, classify(op, a.err)
	}
	return a.v, nil
}
