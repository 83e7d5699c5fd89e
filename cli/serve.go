package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/health"
	"github.com/waybill-go/waybill/relay"
)

// listen takes the port of health and metrics before anything else runs; nil if they are off.
func (d *daemon) listen(ctx context.Context) (net.Listener, error) {
	s := &d.conf.HTTP
	if s.Listen == "" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return nil, errors.New(d.conf.from.Problem("http.listen", "cannot listen there: %s", err))
	}
	if s.TLS.CertFile == "" {
		return l, nil
	}
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { // read again: it may have been renewed
		pair, err := tls.LoadX509KeyPair(s.TLS.CertFile, s.TLS.KeyFile)
		return &pair, err
	}
	if _, err := certificate(nil); err != nil {
		_ = l.Close()
		return nil, errors.New(d.conf.from.Problem("http.tls", "%s", err))
	}
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate, NextProtos: []string{"http/1.1"}}), nil
}

// serve answers probes and /metrics until the function that it returns is called. If the server fails, fail is.
func (d *daemon) serve(ctx context.Context, l net.Listener, metrics http.Handler, page *dashboard.Dashboard, fail func(error)) (stop func(), err error) {
	if l == nil {
		return func() {}, nil
	}
	probes, err := health.New(d.fleet.health())
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", probes)
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	if page != nil {
		mount(mux, page)
	}
	server := &http.Server{
		Handler: mux, BaseContext: func(net.Listener) context.Context { return ctx }, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("http.listen: %w", err))
		}
	}()
	d.log.Info("listening", "event", "daemon.listen", "address", l.Addr().String())
	if page != nil {
		d.welcome(ctx, page, l)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-ended
	}, nil
}

// health is what the probes ask: the relays, and deep the stores and transports.
func (f *fleet) health() health.Options {
	o := health.Options{Engines: map[string]health.Checker{}, Deep: map[string]health.Checker{}}
	stale := map[string]time.Duration{}
	for name, r := range f.relays {
		o.Engines["relay "+name] = r
		after := f.options[name].StaleAfter
		after = cmp.Or(after, relay.DefaultStaleAfter)
		stale[f.ends[name].store] = max(stale[f.ends[name].store], after)
	}
	for name, s := range f.stores {
		if s.Outboxes != nil { // the fleet looks at them all the time
			continue
		}
		o.Deep["store "+name] = health.Store(s.Outbox, stale[name])
	}
	for name, t := range f.transports {
		o.Deep["transport "+name] = health.Transport(t.Publisher)
	}
	return o
}
