package adapter_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters/sqlstores"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/contrib/kafka/adapter"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/sqlite"
)

// bench is the command with the configuration of the README, on a fake broker and SQLite.
type bench struct {
	config, path, brokers string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "<!-- tested: adapter/adapter_test.go -->\n```yaml\n")
	text, _, ok := strings.Cut(text, "```")
	if !ok {
		t.Fatal("the README has no configuration")
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := &bench{filepath.Join(t.TempDir(), "waybill.yaml"), filepath.Join(t.TempDir(), "shop.db"), strings.Join(c.ListenAddrs(), ",")}
	text = strings.Replace(text, "kind: postgres, url: {file: /run/secrets/shop-url}", "kind: sqlite, path: "+b.path, 1)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// run returns the output of a command, and its exit code.
func (b *bench) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	app := cli.App{Stores: sqlstores.Stores(), Transports: []cli.TransportKind{adapter.Transport()}}
	var out bytes.Buffer
	environ := []string{"WAYBILL_TRANSPORTS__BUS__BROKERS=" + b.brokers}
	code := app.Run(t.Context(), append(args, "--config", b.config), cli.IO{In: &bytes.Buffer{}, Out: &out, Err: &out, Environ: environ})
	return out.String(), code
}

func (b *bench) says(t *testing.T, command string, code int, want ...string) {
	t.Helper()
	text, got := b.run(t, strings.Fields(command)...)
	if got != code {
		t.Errorf("%s: exit code %d, want %d:\n%s", command, got, code, text)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q:\n%s", command, w, text)
		}
	}
}

// OP-01: the command declares and compares the topology, moves messages, and handles parked messages.
func TestCommand(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	store, err := sqlite.Open(t.Context(), b.path, sqlite.Options{Source: "/shop", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close(context.WithoutCancel(t.Context())) }()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.says(t, "topology verify", cli.ExitFindings, "shop.parked.billing", "missing")
	b.says(t, "topology declare", cli.ExitOK, "declared for 1 subscription")
	b.says(t, "topology verify", cli.ExitOK, "as it must be")
	b.says(t, "topology verify --set subscriptions.0.bindings.0=mails.* --set transports.bus.partitions=24 --set transports.bus.retention=1h", cli.ExitFindings,
		"topic shop: partitions", "topic shop: retention.ms", "binding mails.*", "binding payments.*")

	tx, err := store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Stage(t.Context(), tx, waybill.RawMessage("payments.made", "text/plain", []byte("hello"), waybill.ID("m1"))); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	b.says(t, "validate", cli.ExitOK)
	b.says(t, "relay --until-empty --for 1h", cli.ExitOK)

	bus, err := kafka.Dial(t.Context(), b.brokers, kafka.Options{Bus: "shop", Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bus.Close(context.WithoutCancel(t.Context())) }()
	r, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	ds, err := r.Receive(t.Context(), 1)
	if err != nil || ds[0].Envelope.ID != "m1" {
		t.Fatal(ds, err)
	}
	b.says(t, "topology gc --yes --set subscriptions.0.queue=other", cli.ExitRefused, "billing: stays", "1 receivers")
	if err := r.Settle(t.Context(), []core.Ack{core.AckReject(ds[0], waybill.ReasonRejected, nil)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.says(t, "dlq list billing", cli.ExitOK, "m1")
	b.says(t, "topology gc --yes --set subscriptions.0.queue=other", cli.ExitRefused, "billing: stays", "1 parked messages")
	b.says(t, "dlq purge billing --all --yes", cli.ExitOK)
	b.says(t, "topology gc --yes --set subscriptions.0.queue=other", cli.ExitOK, "billing: deleted")
	b.says(t, "topology gc --yes --set subscriptions.0.queue=other", cli.ExitOK, "no queue is unused")
	b.says(t, "topology verify", cli.ExitFindings, "topic shop.retry.billing", "missing")
}

// The exports are the text for people, a script of Kafka's tools, and Terraform; without brokers.
func TestExport(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.brokers = "127.0.0.1:1"
	b.says(t, "topology print", cli.ExitOK, "topic shop (12 partitions, 3 replicas, cleanup.policy=delete, min.insync.replicas=2, retention.ms=604800000)")
	b.says(t, "topology export --format commands --relay shop-relay --consumer it's", cli.ExitOK,
		"--create --if-not-exists --topic shop.retry.billing --partitions 12 --replication-factor 3 --config cleanup.policy=delete",
		"--add --allow-principal 'User:shop-relay' --operation Write --operation DescribeConfigs --topic shop\n", `'User:it'\''s' --operation Read --group shop.billing`)
	b.says(t, "topology export --format terraform --operator a${b}", cli.ExitOK, `resource "kafka_topic" "shop_parked_billing"`, "partitions = 1\n", `"User:a$${b}"`)
	b.says(t, "topology export --format json", cli.ExitOK, `"cleanup.policy": "compact"`)
	b.says(t, "topology export --format terraform --set transports.bus.replicas=0 --set transports.bus.min_in_sync=0", cli.ExitUsage, "Replicas: is not set")
}

// Each wrong setting is an error that names it, and no password is shown.
func TestSettings(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const set = "topology print --set transports.bus.user=shop --set transports.bus."
	b.says(t, set+"mechanism=plain", cli.ExitUsage, "transports.bus.password", "is missing")
	b.says(t, set+"password=hunter2 --set transports.bus.mechanism=plain", cli.ExitUsage, "transports.bus.mechanism", "plain shows the password")
	b.says(t, set+"password=hunter2 --set transports.bus.mechanism=md5", cli.ExitUsage, "transports.bus.mechanism", "is none of")
	b.says(t, set+"password=hunter2 --set transports.bus.encrypt=true --set transports.bus.mechanism=plain", cli.ExitOK, "topic shop")
	b.brokers = ""
	b.says(t, "topology print", cli.ExitUsage, "transports.bus.brokers", "is missing")
}

// The command needs no client of other brokers, nor of MongoDB.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/waybill").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"aws", "mongo", "amqp091", "go-redis"} {
		if strings.Contains(string(out), name) {
			t.Errorf("the command depends on %s", name)
		}
	}
}
