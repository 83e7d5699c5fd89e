package docs_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/store/postgres"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// The three settings of docs/sizing.md.
func lowLatency(store core.OutboxStore, bus core.Transport, bill waybill.Handler) (*relay.Relay, *consumer.Consumer, error) {
	r, err := relay.New(store, bus, relay.Options{BatchSize: 100})
	if err != nil {
		return nil, nil, err
	}
	c, err := consumer.New(bus, consumer.Options{Concurrency: 20, Prefetch: 20})
	if err != nil {
		return nil, nil, err
	}
	return r, c, c.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}, bill)
}

func highThroughput(ctx context.Context, url string, store *postgres.Store, bill func(context.Context, pgx.Tx, []inbox.Item[Mail]) error) (*relay.Relay, *consumer.Consumer, error) {
	bus, err := rabbitmq.Dial(ctx, url, rabbitmq.Options{PipelineKeys: true})
	if err != nil {
		return nil, nil, err
	}
	r, err := relay.New(store, bus, relay.Options{BatchSize: 2000, Window: 8})
	if err != nil {
		return nil, nil, err
	}
	box, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		return nil, nil, err
	}
	c, err := consumer.New(bus, consumer.Options{Concurrency: 4})
	if err != nil {
		return nil, nil, err
	}
	mails := waybill.Subscription{Queue: "billing.mails", Bindings: []string{"mails.*"}}
	hundred := inbox.BatchOptions{Size: 100, Wait: 5 * time.Millisecond} // in one transaction
	return r, c, c.Handle(mails, inbox.BatchHandler(box, MailWanted, bill, hundred))
}

func critical(store core.OutboxStore, bus core.Transport, bill waybill.Handler) (*relay.Relay, *consumer.Consumer, error) {
	r, err := relay.New(store, bus, relay.Options{
		BatchSize: 100, Window: 2, // so much can come again after a crash
		UnroutableTimeout: 7 * 24 * time.Hour, // a queue that is missing costs no message of a long weekend
		Routes: []relay.Route{{
			BlockAfterAbandon: true,                           // no message of the key passes it
			Backoff:           &waybill.Backoff{Attempts: -1}, // a refused message is tried for ever
		}},
	})
	if err != nil {
		return nil, nil, err
	}
	c, err := consumer.New(bus, consumer.Options{})
	if err != nil {
		return nil, nil, err
	}
	return r, c, c.Handle(waybill.Subscription{
		Queue: "billing.orders", Bindings: []string{"orders.*"},
		InOrder: true, Concurrency: 10,
		Retry: waybill.RetryDelays(10*time.Second, time.Minute, 10*time.Minute, time.Hour), // then it is parked
	}, bill)
}

// OP-09: the three settings are valid.
func TestSizingSettings(t *testing.T) {
	t.Parallel()
	store := must(memory.New(memory.Options{Source: "/shop"}))
	bus := must(memtransport.New(memtransport.Options{}))
	bill := waybill.HandlerFor(MailWanted, func(context.Context, Mail) error { return nil })
	bill.Name, bill.NameIsTopic = "orders.placed", false
	for name, setting := range map[string]func(core.OutboxStore, core.Transport, waybill.Handler) (*relay.Relay, *consumer.Consumer, error){
		"low latency": lowLatency, "critical": critical,
	} {
		if _, _, err := setting(store, bus, bill); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = highThroughput // needs servers; its options are those of the YAML
}

// OP-09: the YAML of the sizing guide is a configuration.
func TestSizingYAML(t *testing.T) {
	t.Parallel()
	blocks := yamlBlock.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", "sizing.md")), -1)
	if len(blocks) != 3 {
		t.Errorf("%d YAML blocks, want one for each of three settings", len(blocks))
	}
	app := cli.App{Stores: adapters.Stores(), Transports: adapters.Transports()}
	for i, b := range blocks {
		file := filepath.Join(t.TempDir(), "waybill.yaml")
		if err := os.WriteFile(file, []byte(b[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		args := []string{
			"relay", "--print-config", "--config", file, "--set", "stores.shop.kind=postgres", "--set", "stores.shop.url=postgres://localhost/shop",
			"--set", "transports.bus.kind=rabbitmq", "--set", "transports.bus.url=amqp://localhost",
		}
		if code := app.Run(t.Context(), args, cli.IO{In: strings.NewReader(""), Out: &out, Err: &out}); code != 0 {
			t.Errorf("block %d: %s", i, out.String())
		}
	}
}

// OP-09: the measured part of the sizing guide has every axis, with rates, percentiles and CPU times.
func TestSizingAxes(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(read(t, filepath.Join(root, "docs", "sizing.md")), "<!-- measured: begin")
	measured, _, ended := strings.Cut(rest, "<!-- measured: end -->")
	if !ended {
		t.Fatal("no marks of the measured part")
	}
	if !strings.Contains(measured, " cores for everything") || !strings.Contains(measured, "| raw limit |") {
		t.Error("the machine or the raw limits are missing")
	}
	for title, rows := range map[string][]string{
		"Relays and consumers": {"1, 0", "2, 0", "4, 0", "1, 1", "2, 1", "4, 1", "1, 2", "2, 2", "4, 2", "1, 4", "2, 4", "4, 4"},
		"Batch size":           {"1", "20", "100", "500", "2000"},
		"Window":               {"1", "2", "4", "16"},
		"Concurrency":          {"1", "5", "10", "20", "50", "10, without inbox"},
		"Prefetch":             {"10", "20", "50", "200", "1000"},
		"Body size":            {"256", "1024", "4096", "16384", "65536"},
		"Order by key":         {"none", "1,000", "10", "1", "1, pipelined", "1,000, one consumer", "1,000, one consumer in order", "10, one consumer in order", "1, one consumer in order"},
		"The three settings":   {"low latency", "high throughput", "critical messages"},
	} {
		_, section, found := strings.Cut(measured, "\n### "+title+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		if !found || !strings.Contains(section, "messages/s | of raw | p50 | p99 | p99.9 | CPU ms / 1,000: waybill | servers | again |") {
			t.Errorf("no table %q", title)
		}
		for _, row := range rows {
			if !regexp.MustCompile(`\n\| ` + regexp.QuoteMeta(row) + ` \| [\d,]+ \| \d+\.\d\d \| ([\d.]+ ms \| ){3}\d+ \| \d+ \| \d+ \|\n`).MatchString(section) {
				t.Errorf("%s: no row %q", title, row)
			}
		}
	}
	for _, section := range []string{"Disk while the broker is down", "A night's backlog"} {
		if !strings.Contains(measured, "\n### "+section+"\n") {
			t.Errorf("no section %q", section)
		}
	}
}
