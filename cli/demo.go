package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
)

// demoAddress is where the dashboard of the demo is. If the port is taken, another one is used.
const demoAddress = "127.0.0.1:9797"

// runDemo runs a shop with an outbox in a temporary folder, its traffic and its troubles, and the dashboard over it,
// until ctx ends. Nothing of it stays.
func runDemo(ctx context.Context, logger *slog.Logger, out io.Writer) error {
	dir, err := os.MkdirTemp("", "waybill-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	shop, err := demo.New(ctx, dir, slog.New(slog.DiscardHandler)) // its troubles are on purpose
	if err != nil {
		return err
	}
	defer func() { _ = shop.Close(context.WithoutCancel(ctx)) }()
	opts := shop.Options()
	opts.Logger = logger
	page, err := dashboard.New(opts)
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", demoAddress)
	if err != nil {
		if l, err = listen.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	say(out, "A shop runs in this process: an outbox in SQLite, a broker in memory, and traffic.\nLook at %s\nEnd it with Ctrl-C.\n",
		page.SignInURL(fmt.Sprintf("http://localhost:%d", l.Addr().(*net.TCPAddr).Port)))
	return waybill.Run(ctx, runner(shop.Run), runner(shop.Traffic), runner(page.Run), runner(func(ctx context.Context) error { return servePage(ctx, l, page) }))
}

// servePage serves h until ctx ends. Streams end with ctx, too.
func servePage(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("dashboard: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(stop), ignoreClosed(<-ended))
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
