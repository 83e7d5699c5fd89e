package mongoproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Options configures a Proxy. All but Go and Lifetime are required.
type Options struct {
	// Listen is the address to listen on, such as 127.0.0.1:0.
	Listen string
	// Upstream is the address of FerretDB.
	Upstream string
	// Postgres is the connection URL of the database that FerretDB uses.
	Postgres string
	// Go starts what runs until Close; nil means a plain go statement.
	Go func(fn func())
	// Lifetime is how long a transaction may last; default one minute.
	Lifetime time.Duration
	// Allow says which commands the clients may send; nil = all. Others are answered as a server with roles does.
	Allow func(command bson.Raw) bool
}

// Proxy stands between clients and FerretDB. It is safe for concurrent use.
type Proxy struct {
	opts   Options
	listen net.Listener
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	txs   map[txKey]*tx
	conns map[net.Conn]bool
	idle  []*pgx.Conn
}

// Start starts a proxy. It serves until Close.
func Start(ctx context.Context, opts Options) (*Proxy, error) {
	opts.Lifetime = cmp.Or(opts.Lifetime, time.Minute)
	if opts.Go == nil {
		opts.Go = func(fn func()) { go fn() }
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", opts.Listen)
	if err != nil {
		return nil, fmt.Errorf("mongoproxy: %w", err)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &Proxy{
		opts: opts, listen: l, cancel: cancel,
		txs: map[txKey]*tx{}, conns: map[net.Conn]bool{},
	}
	p.run(func() { p.accept(run) })
	p.run(func() { p.reap(run) })
	return p, nil
}

// run starts what Close waits for.
func (p *Proxy) run(fn func()) {
	p.wg.Add(1)
	p.opts.Go(func() {
		defer p.wg.Done()
		fn()
	})
}

// connect returns an idle connection to PostgreSQL, or a new one.
func (p *Proxy) connect(ctx context.Context) (*pgx.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return c, nil
	}
	cfg, err := pgx.ParseConfig(p.opts.Postgres)
	if err != nil {
		return nil, err
	}
	cfg.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if waitsForAnother(n.Message) {
			soon, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = c.CancelRequest(soon) // it goes on waiting
		}
	}
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return upstream{c}, err
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// upstream is a connection to PostgreSQL. The driver may leave a reader behind on one that was slow to write. The Read
// in its stack tells it from the reader of a forgotten connection.
type upstream struct{ net.Conn }

func (u upstream) Read(p []byte) (int, error) { return u.Conn.Read(p) }

func (p *Proxy) release(c *pgx.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.IsClosed() {
		p.idle = append(p.idle, c)
	}
}

// Addr is the address that clients use.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// Close ends all connections and transactions.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.listen.Close() // nothing is accepted any more
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	for _, c := range p.idle {
		_ = c.Close(context.Background())
	}
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		p.mu.Lock()
		p.conns[client] = true
		p.mu.Unlock()
		p.run(func() { p.serve(ctx, client) })
	}
}

// allows reports whether the clients may send m.
func (p *Proxy) allows(m message) bool {
	if p.opts.Allow == nil || m.opcode() != opMsg {
		return true
	}
	command, err := m.body()
	return err != nil || p.opts.Allow(command)
}

// unauthorized is the text of MongoDB for a command that a user may not send. It has values of the command.
func unauthorized(m message) string {
	body, _ := m.body() // Allow has read it
	database, _ := body.Lookup("$db").StringValueOK()
	var list []string
	elements, _ := body.Elements() // as above
	for _, e := range elements {
		list = append(list, e.Key()+": "+e.Value().String())
	}
	return "not authorized on " + database + " to execute command { " + strings.Join(list, ", ") + " }"
}

// serve serves one client until it, FerretDB or the proxy ends.
func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	defer func() {
		_ = client.Close()
		p.mu.Lock()
		delete(p.conns, client)
		p.mu.Unlock()
		p.endAll(client)
	}()
	upstream, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", p.opts.Upstream)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	var out sync.Mutex // whole messages go to the client
	send := func(m message) error {
		out.Lock()
		defer out.Unlock()
		_, err := client.Write(m)
		return err
	}
	p.run(func() {
		for {
			m, err := readMessage(upstream)
			if err == nil {
				err = send(m)
			}
			if err != nil {
				_ = client.Close()
				return
			}
		}
	})
	for {
		m, err := readMessage(client)
		if err != nil {
			return
		}
		if !p.allows(m) {
			err = send(reply(m.id(), failure(13, "Unauthorized", unauthorized(m), "")))
		} else if cmd, ok := p.ours(m); ok {
			err = send(reply(m.id(), p.execute(ctx, client, cmd)))
		} else {
			_, err = upstream.Write(m)
		}
		if err != nil {
			return
		}
	}
}
