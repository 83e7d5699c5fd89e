// Package interop runs the programs in this folder, which know nothing of Waybill, against it.
package interop_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

type order struct {
	ID string `json:"id"`
}

var placed = waybill.NewTopic("orders.placed", waybill.JSON[order]())

// seen is what the programs print about a message.
type seen struct {
	ID, Source, Type, Topic, Key, Tenant, ContentType, Region, Body string
}

// program is one of the programs, by the name of its source.
type program struct{ language, file string }

func (p program) command(ctx context.Context, args ...string) *exec.Cmd {
	if p.language == "node" {
		return exec.CommandContext(ctx, "node", append([]string{filepath.Join("node", p.file+".mjs")}, args...)...)
	}
	python := os.Getenv("WAYBILL_TEST_PYTHON")
	if python == "" {
		python = "/usr/bin/python3" // Debian's packages are for Debian's interpreter
	}
	return exec.CommandContext(ctx, python, append([]string{filepath.Join("python", p.file+".py")}, args...)...)
}

// run runs the program and returns its output.
func (p program) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	ctx, _ := patience.Context(t.Context(), 2*patience.Limit)
	cmd := p.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if lacks(err, stderr.String()) {
		tier.Missing(t, "%s: %v; scripts/servers installs what it needs\n%s", cmd, err, stderr.String())
	} else if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}
	return string(out)
}

// lacks reports whether a program failed for want of its interpreter or of a package.
func lacks(err error, stderr string) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) ||
		err != nil && (strings.Contains(stderr, "ERR_MODULE_NOT_FOUND") || strings.Contains(stderr, "ModuleNotFoundError"))
}

// broker is a broker with the transport and the programs for it.
type broker struct {
	name string
	bus  core.Transport
	// consume and publish are the arguments of the programs after the address.
	url              string
	consume, publish []string
}

func brokers(t *testing.T, queue string) []broker {
	t.Helper()
	mq := testenv.RabbitMQ(t)
	bus, err := rabbitmq.Dial(t.Context(), mq.URL, rabbitmq.Options{Exchange: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close(context.WithoutCancel(t.Context())) })
	server := testenv.Redis(t)
	name := strings.ToLower(rand.Text())
	streams, err := redisstreams.Dial(t.Context(), server, redisstreams.Options{Bus: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = streams.Close(context.WithoutCancel(t.Context())) })
	stream := "{" + name + "}:queue:" + queue
	return []broker{
		{"rabbitmq", bus, mq.URL, []string{queue}, []string{"shop", "orders.placed"}},
		{"redis_streams", streams, server, []string{stream}, []string{stream, "orders.placed"}},
	}
}

// TR-12: programs in Node and Python read what Waybill sends.
func TestProgramsConsume(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"node", "python"} {
		queue := "billing." + language
		for _, b := range brokers(t, queue) {
			t.Run(language+" "+b.name, func(t *testing.T) {
				t.Parallel()
				r, err := b.bus.Subscribe(t.Context(), core.Subscription{Queue: queue, Bindings: []string{"orders.*"}})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Close(t.Context()); err != nil { // the queue stays
					t.Fatal(err)
				}
				var batch []waybill.Envelope
				var want []seen
				for i := range 3 {
					id := strconv.Itoa(i)
					batch = append(batch, waybill.Envelope{
						ID: id, Topic: "orders.placed", Type: "com.example.placed", Source: "/shop", Key: "k" + id, Tenant: "acme",
						ContentType: "application/json", Headers: map[string]string{"region": "eu"}, Body: fmt.Appendf(nil, `{"id":"größe-%d"}`, i),
					})
					want = append(want, seen{id, "/shop", "com.example.placed", "orders.placed", "k" + id, "acme", "application/json", "eu", fmt.Sprintf(`{"id":"größe-%d"}`, i)})
				}
				if err := b.bus.Publish(t.Context(), batch).FirstErr(); err != nil {
					t.Fatal(err)
				}
				out := program{language, b.name}.run(t, "", slices.Concat([]string{"consume", b.url}, b.consume, []string{"3"})...)
				var got []seen
				for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
					var s seen
					if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
						t.Fatalf("%v: %s", err, lines.Text())
					}
					got = append(got, s)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Error(d)
				}
			})
		}
	}
}

// TR-12: a message of a program in Node or Python reaches a handler, once, through the inbox.
func TestProgramsPublish(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"node", "python"} {
		queue := "shipping." + language
		for _, b := range brokers(t, queue) {
			t.Run(language+" "+b.name, func(t *testing.T) {
				t.Parallel()
				store, err := memory.New(memory.Options{Source: "/test"})
				if err != nil {
					t.Fatal(err)
				}
				box, err1 := inbox.New(store, "shipping", inbox.Options{})
				c, err2 := consumer.New(b.bus, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
				if err := errors.Join(err1, err2); err != nil {
					t.Fatal(err)
				}
				got := make(chan seen, 3)
				err = c.Handle(waybill.Subscription{Queue: queue, Bindings: []string{"orders.placed"}}, inbox.Handler(box, placed, func(ctx context.Context, _ *memory.Tx, o order) error {
					d, _ := waybill.DeliveryFrom(ctx)
					e := d.Envelope
					got <- seen{Source: e.Source, Type: e.Type, Topic: e.Topic, Key: e.Key, ContentType: e.ContentType, Region: e.Headers["region"], Body: o.ID}
					return nil
				}))
				if err != nil {
					t.Fatal(err)
				}
				// the queue is there before the program runs
				r, err := b.bus.Subscribe(t.Context(), core.Subscription{Queue: queue, Bindings: []string{"orders.placed"}})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				program{language, b.name}.run(t, `{"id":"1"}`+"\n"+`{"id":"2"}`+"\n", slices.Concat([]string{"publish", b.url}, b.publish)...)
				idle, moved := patience.Context(t.Context(), 2*patience.Limit)
				ctx, stop := context.WithCancel(idle)
				defer stop()
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				for i := range 2 {
					want := seen{"", "/" + language, "orders.placed", "orders.placed", language + "-key", "", "application/json", "eu", strconv.Itoa(i + 1)}
					select {
					case s := <-got:
						moved()
						if d := cmp.Diff(want, s); d != "" {
							t.Error(d)
						}
					case <-ctx.Done():
						t.Fatal("it did not arrive")
					}
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
}
