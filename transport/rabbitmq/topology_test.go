package rabbitmq_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// RM-01, RM-02: the names and arguments are a contract with what is on brokers already: another argument refuses to
// start.
func TestTopologyGolden(t *testing.T) {
	t.Parallel()
	opts := rabbitmq.Options{Exchange: "waybill", QueueType: rabbitmq.QueueQuorum}
	sub := core.Subscription{Queue: "billing", Bindings: []string{"orders.*"}, RetryDelays: []time.Duration{500 * time.Millisecond, 90 * time.Second}}
	var b strings.Builder
	topology, err := rabbitmq.NewTopology(opts, asUser(&sub))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range topology.Exchanges {
		fmt.Fprintln(&b, e)
	}
	for _, q := range topology.Queues {
		fmt.Fprintln(&b, q)
		for _, k := range slices.Sorted(maps.Keys(q.Arguments)) {
			fmt.Fprintf(&b, "    %s = %#v\n", k, q.Arguments[k])
		}
	}
	for _, x := range topology.Bindings {
		fmt.Fprintln(&b, x)
	}
	golden(t, "testdata/topology.golden", b.String(), "../../docs/rabbitmq.md")
}

// RM-04: what queue orders.return parks would go to queue orders, by the key of its way back; and what orders retries,
// to the parked ones.
func TestReturnIsNoQueueName(t *testing.T) {
	t.Parallel()
	retry := waybill.RetryDelays()
	_, err := rabbitmq.NewTopology(rabbitmq.Options{}, waybill.Subscription{Queue: "orders", Retry: retry}, waybill.Subscription{Queue: "orders.return", Retry: retry})
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), `subscriptions[1].Queue: "orders.return" ends in ".return"`) || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("got %v", err)
	}
	if p := rabbitmq.SubscriptionProblems(&core.Subscription{Queue: "orders.return"}, rabbitmq.Options{}); len(p) != 1 {
		t.Errorf("a subscription: %v", p)
	}
	if p := rabbitmq.SubscriptionProblems(&core.Subscription{Queue: "orders.returns"}, rabbitmq.Options{}); len(p) != 0 {
		t.Errorf("another name: %v", p)
	}
}

// golden compares got with the file at path, and checks that the document, if there is one, holds it.
func golden(t *testing.T, path, got, document string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("a contract changed (-want +got); UPDATE_GOLDEN=1 accepts it:\n%s", diff)
	}
	if document == "" {
		return
	}
	doc, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "```\n"+string(want)+"```\n") {
		t.Errorf("%s does not hold the content of %s", document, path)
	}
}

func writeFile(t *testing.T, content []byte) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "waybill-definitions-") //nolint:usetesting // readable for the broker's tools, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "definitions.json")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
