package mistakes_test

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	osexec "os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// stuckConsumer is the variable that makes the test binary a consumer whose handler never ends: the broker's address.
const stuckConsumer = "WAYBILL_E2E_STUCK_CONSUMER"

// runStuckConsumer maps signals to its context as docs/handlers.md says.
func runStuckConsumer(url string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stdout, nil))
	context.AfterFunc(ctx, func() { // as context.AfterFunc(ctx, stop), and says so
		stop()
		logger.Info("the next signal is not caught")
	})
	bus, err := rabbitmq.Dial(ctx, url, rabbitmq.Options{})
	if err == nil {
		var c *consumer.Consumer
		if c, err = consumer.New(bus, consumer.Options{Logger: logger, DrainTimeout: time.Hour}); err == nil {
			err = errors.Join(c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"a"}}, waybill.Handler{
				Name: "a", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
					logger.Info("handling")
					select {}
				},
			}), c.Run(ctx))
		}
	}
	logger.Info("ended", "error", err)
	os.Exit(1)
}

// The first signal stops gracefully: the handler may finish. The second one ends the process at once, and the message
// goes to another process.
func TestASecondSignalEndsAtOnce(t *testing.T) { // CO-11
	t.Parallel()
	url := testenv.RabbitMQ(t).URL
	limit, _ := patience.Context(t.Context(), time.Minute)
	cmd := osexec.CommandContext(limit, os.Args[0])
	cmd.Env = append(os.Environ(), stuckConsumer+"="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	// await reads lines until each of whats has stood in one, in any order.
	await := func(whats ...string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), "ended") {
				t.Fatal(lines.Text())
			}
			whats = slices.DeleteFunc(whats, func(what string) bool { return strings.Contains(lines.Text(), what) })
			if len(whats) == 0 {
				return
			}
		}
		t.Fatalf("the process ended before %q", whats)
	}
	await("consumer.start")
	bus := dial(t, url, rabbitmq.Options{})
	if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "1", Topic: "a"}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	await("handling")
	terminate := func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	terminate()
	await("event=consumer.stop ", "not caught") // it waits for the handler, an hour if need be
	terminate()
	for lines.Scan() { // until it has ended
	}
	err = cmd.Wait()
	exit, ok := errors.AsType[*osexec.ExitError](err)
	if !ok {
		t.Fatalf("the process ended with %v", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("the process ended with %v, want its end by the second signal", exit)
	}

	again := make(chan *waybill.Delivery, 1)
	c, err := consumer.New(bus, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Handle(waybill.Subscription{Queue: "q"}, waybill.Handler{Name: "a", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		again <- d
		return waybill.HandlerProcessed, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case d := <-again:
		if d.Envelope.ID != "1" || d.Redeliveries != 1 {
			t.Errorf("message %s with %d redeliveries, want 1 with 1", d.Envelope.ID, d.Redeliveries)
		}
	case <-ctx.Done():
		t.Error("the message did not come again")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
