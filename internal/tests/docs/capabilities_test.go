package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/mongo"
	mongooptions "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/store/memory"
	mongostore "github.com/waybill-go/waybill/store/mongo"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
	"github.com/waybill-go/waybill/transport/redisstreams"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
	"github.com/waybill-go/waybill/transport/table"
)

// adapter is a shipped adapter with default options, and the traits that it must declare: a conformance suite tests an
// adapter's promises only, so an adapter without promises would pass it.
type adapter struct {
	name  string
	value any
	want  []any // of its traits
	has   string
}

// transports are those of the capability table. A new adapter is added here.
func transports(t *testing.T) []adapter {
	t.Helper()
	outbox := must(memory.New(memory.Options{Source: "/shop"}))
	bus := func(o rabbitmq.Options) *rabbitmq.Transport { return must(rabbitmq.New(&amqp.Connection{}, o)) }
	return []adapter{
		{
			"memory", must(memtransport.New(memtransport.Options{})),
			[]any{
				core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true},
				core.SubscriberTraits{
					KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true, SingleActive: true, Wildcards: core.WildcardsAll,
				},
			},
			"ParkedQueue",
		},
		{
			"table", must(table.New(outbox, table.Options{})),
			[]any{core.SubscriberTraits{KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true, SingleActive: true}},
			"ParkedQueue",
		},
		{
			"rabbitmq", bus(rabbitmq.Options{}),
			[]any{
				core.PublisherTraits{
					KeyOrder: core.KeyOrderSerial, Confirmed: true, Durable: true, Synced: true, DetectsUnroutable: true, MaxMessageBytes: 16 << 20,
				},
				core.SubscriberTraits{
					KeyOrder: true, DelaysRetries: true, MaxRetryDelay: topology.MaxDelay, Parks: true, BrokerParks: true, CountsRedeliveries: true,
					AckTimeout: 30 * time.Minute, SingleActive: true, Wildcards: core.WildcardsAll,
				},
			},
			"Checker, DriftChecker, ParkedQueue",
		},
		{
			"rabbitmq, classic queues", bus(rabbitmq.Options{QueueType: topology.Classic}),
			[]any{
				core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, Durable: true, DetectsUnroutable: true, MaxMessageBytes: 16 << 20},
				core.SubscriberTraits{
					KeyOrder: true, DelaysRetries: true, MaxRetryDelay: topology.MaxDelay, Parks: true, AckTimeout: 30 * time.Minute, SingleActive: true,
					Wildcards: core.WildcardsAll,
				},
			},
			"Checker, DriftChecker, ParkedQueue",
		},
		{
			"redisstreams", must(redisstreams.New(redis.NewClient(&redis.Options{}), redisstreams.Options{})),
			[]any{
				core.PublisherTraits{KeyOrder: core.KeyOrderPipelinedPrefix, Confirmed: true, DetectsUnroutable: true, MaxMessageBytes: 16 << 20},
				core.SubscriberTraits{
					KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true, HoldFor: 8 * time.Second, SingleActive: true,
					Wildcards: core.WildcardsAll,
				},
			},
			"Checker, ParkedQueue",
		},
		{
			"sqs", must(sqstransport.New(awssqs.New(awssqs.Options{}), sqstransport.Options{})),
			[]any{
				core.PublisherTraits{Confirmed: true, Durable: true, Synced: true, DetectsUnroutable: true, MaxMessageBytes: 704 << 10},
				core.SubscriberTraits{
					DelaysRetries: true, Parks: true, BrokerParks: true, CountsRedeliveries: true, HoldFor: 9 * time.Second, Wildcards: core.WildcardsAll,
				},
			},
			"Checker, ParkedQueue",
		},
		{
			"sqs, over a topic of SNS", must(sqstransport.New(awssqs.New(awssqs.Options{}), sqstransport.Options{TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders"})),
			[]any{
				core.PublisherTraits{Confirmed: true, Durable: true, Synced: true, MaxMessageBytes: 176 << 10},
				core.SubscriberTraits{DelaysRetries: true, Parks: true, BrokerParks: true, CountsRedeliveries: true, HoldFor: 9 * time.Second},
			},
			"Checker, ParkedQueue",
		},
		{
			"sqs, FIFO queues", must(sqstransport.New(awssqs.New(awssqs.Options{}), sqstransport.Options{FIFO: true})),
			[]any{
				core.PublisherTraits{
					KeyOrder: core.KeyOrderSerial, Confirmed: true, Durable: true, Synced: true, DetectsUnroutable: true, TwoCopiesAtMost: true,
					MaxMessageBytes: 704 << 10,
				},
				core.SubscriberTraits{
					KeyOrder: true, DelaysRetries: true, MaxRetryDelay: 11 * time.Hour, Parks: true, BrokerParks: true, CountsRedeliveries: true,
					AttemptsAreDeliveries: true, HoldFor: 9 * time.Second, SingleActive: true, Wildcards: core.WildcardsAll,
				},
			},
			"Checker, ParkedQueue",
		},
	}
}

// stores are those of the capability table. A new adapter is added here.
func stores(t *testing.T) []adapter {
	t.Helper()
	pool := must(pgxpool.New(t.Context(), "postgres://localhost/shop"))
	t.Cleanup(pool.Close)
	file := must(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), sqlite.Options{Source: "/shop"}))
	t.Cleanup(func() { _ = file.Close(t.Context()) })
	// no server is asked
	client := must(mongo.Connect(mongooptions.Client().ApplyURI("mongodb://localhost:27017/?replicaSet=rs0")))
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	const (
		inMemory = "Checker, Cleaner, ClockSeeder, Counter, Decider, Inspector, BlockedKeys, Purger, Redriver, Waiter"
		inFile   = "Checker, Cleaner, ClockSeeder, Counter, Decider, DriftChecker, Inspector, BlockedKeys, Migrator, Purger, Redriver, Waiter"
		inServer = "Checker, Cleaner, ClockSeeder, Counter, Decider, DriftChecker, Inspector, BlockedKeys, Migrator, Presence, Purger, Redriver, SeqInspector, Waiter"
	)
	shared := []any{core.StoreTraits{SessionFence: true, Durable: true, SharedAcrossProcesses: true}}
	return []adapter{
		{"memory", must(memory.New(memory.Options{Source: "/shop"})), []any{core.StoreTraits{SessionFence: true}}, inMemory},
		{"postgres", must(postgres.New(pool, postgres.Options{Source: "/shop"})), shared, inServer},
		{"sqlite", file, shared, inFile},
		{"mongo", must(mongostore.New(client.Database("shop"), mongostore.Options{Source: "/shop"})), shared, inFile},
	}
}

// traits returns the traits that a declares: their structs, in the order of their interfaces.
func (a *adapter) traits() (all []any) {
	if p, ok := a.value.(core.Publisher); ok {
		all = append(all, p.Traits())
	}
	if s, ok := a.value.(core.Subscriber); ok {
		all = append(all, s.SubscriberTraits())
	}
	if s, ok := a.value.(core.OutboxStore); ok {
		all = append(all, s.Traits())
	}
	return all
}

// capabilities returns the names of the optional interfaces that a has.
func (a *adapter) capabilities() string {
	var names []string
	note := func(name string, has bool) {
		if has {
			names = append(names, name)
		}
	}
	note("Checker", has[core.Checker](a.value))
	note("Cleaner", has[core.Cleaner](a.value))
	note("ClockSeeder", has[core.ClockSeeder](a.value))
	note("Counter", has[admin.Counter](a.value))
	note("Decider", has[admin.Terminator](a.value))
	note("DriftChecker", has[admin.DriftChecker](a.value))
	note("Inspector", has[admin.Inspector](a.value))
	note("BlockedKeys", has[admin.BlockedKeys](a.value))
	note("Migrator", has[admin.Migrator](a.value))
	note("ParkedQueue", has[admin.ParkedQueue](a.value))
	note("Presence", has[core.Presence](a.value))
	note("Purger", has[admin.Purger](a.value))
	note("Redriver", has[admin.Redriver](a.value))
	note("SeqInspector", has[admin.SeqInspector](a.value))
	note("Waiter", has[core.Waiter](a.value))
	return strings.Join(names, ", ")
}

func has[T any](v any) bool {
	_, ok := core.As[T](v)
	return ok
}

// TestCapabilitiesPage checks docs/capabilities.md against what the shipped adapters declare, and that against what
// they must declare. Rewrite the page with go test ./internal/tests/docs -update.
//
// TE-05
func TestCapabilitiesPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Capabilities\n\nGenerated from the traits of the adapters, with default options, by `make generate`; do not edit. A conformance suite\n" +
		"tests these traits; [writing an adapter](adapters.md) explains each capability.\n")
	for _, c := range []struct {
		title    string
		adapters []adapter
	}{{"Transports", transports(t)}, {"Stores", stores(t)}} {
		fmt.Fprintf(&b, "\n## %s\n", c.title)
		for _, a := range c.adapters {
			if got := a.traits(); !reflect.DeepEqual(got, a.want) {
				t.Errorf("%s %s declares %+v, want %+v", c.title, a.name, got, a.want)
			}
			if got := a.capabilities(); got != a.has {
				t.Errorf("%s %s has %s, want %s", c.title, a.name, got, a.has)
			}
		}
		matrix(&b, c.adapters)
	}
	b.WriteString("\n## What the suite of transports checks\n\nEach is a check of `core/transporttest`. The checks of a trait that is not declared are skipped.\n\n| check | promise |\n|---|---|\n")
	for _, c := range transporttest.Checks() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.Name, c.Doc)
	}
	page := filepath.Join(root, "docs", "capabilities.md")
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, page) != b.String() {
		t.Errorf("%s does not say what the code says: run make generate", page)
	}
}

// matrix writes a row for each trait and a column for each adapter.
func matrix(b *strings.Builder, adapters []adapter) {
	b.WriteString("\n| |")
	for _, a := range adapters {
		fmt.Fprintf(b, " %s |", a.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(adapters)) + "\n")
	for _, kind := range []reflect.Type{reflect.TypeFor[core.PublisherTraits](), reflect.TypeFor[core.SubscriberTraits](), reflect.TypeFor[core.StoreTraits]()} {
		for _, f := range reflect.VisibleFields(kind) {
			cells, used := make([]string, len(adapters)), false
			for i, a := range adapters {
				cells[i] = "—"
				for _, traits := range a.traits() {
					if reflect.TypeOf(traits) == kind {
						cells[i], used = cell(reflect.ValueOf(traits).FieldByIndex(f.Index).Interface()), true
					}
				}
			}
			if used {
				fmt.Fprintf(b, "| `%s.%s` | %s |\n", kind.Name(), f.Name, strings.Join(cells, " | "))
			}
		}
	}
	b.WriteString("| capabilities |")
	for _, a := range adapters {
		fmt.Fprintf(b, " %s |", a.capabilities())
	}
	b.WriteString("\n")
}

// cell shows the value of a trait.
func cell(v any) string {
	switch v := v.(type) {
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case time.Duration:
		if v == 0 {
			return "0"
		}
		return v.String()
	default:
		return fmt.Sprint(v)
	}
}
