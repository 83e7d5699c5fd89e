package cli_test

// An operator trusts validate: it changes nothing, and "no problem" means that nothing is missing.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/testenv"
)

// RM-06, OP-02: validate declares nothing. It finds a missing exchange, a delay queue of the default retries that was
// deleted, and a topic of waiting messages that has no binding.
func TestValidateOfABroker(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := newRabbit(t)
	ch := testenv.Channel(t, r.mq.URL)
	file := filepath.Join(t.TempDir(), "waybill.yaml")
	text := fmt.Sprintf("transports:\n  mq:\n    kind: rabbitmq\n    exchange: shop\n    url: %s\n    management_url: %s\n"+
		"relays:\n  shop: {}\nsubscriptions:\n- queue: billing\n  bindings: [\"orders.*\"]\n", r.mq.URL, r.mq.ManagementURL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) answer { t.Helper(); return s.run(append(args, "--config", file)...) }

	for range 2 { // the second time everything is missing as before
		run("validate").is(t, cli.ExitFindings, `exchange "shop"`, `queue "billing"`, "billing.delay_10s")
	}
	run("topology", "declare").is(t, cli.ExitOK)
	run("validate").is(t, cli.ExitOK, "no problem")
	if _, err := ch.QueueDelete("billing.delay_10s", false, false, false); err != nil {
		t.Fatal(err)
	}
	run("validate").is(t, cli.ExitFindings, "billing.delay_10s").not(t, `exchange "shop"`)
	run("topology", "declare").is(t, cli.ExitOK)
	s.stage(message("orders.placed", "a"), message("invoices.made", "b"), message("invoices.made", "c"), message("gone", "d", waybill.Cancellable()))
	s.run("cancel", "d").is(t, cli.ExitOK)
	run("validate").is(t, cli.ExitFindings, `topic "invoices.made": messages of it wait on route default`, "transports.mq").not(t, `"gone"`)
	if err := ch.QueueBind("billing", "invoices.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	run("validate").not(t, "invoices.made\": messages")
}

// The address of the management API is optional: without it validate says which part it cannot verify, and finds the
// rest.
func TestValidateWithoutManagement(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	r := newRabbit(t)
	dir := t.TempDir()
	write := func(more string) string {
		file := filepath.Join(dir, "waybill.yaml")
		text := fmt.Sprintf("transports: {bus: {kind: rabbitmq, url: %q, exchange: shop}}\nrelays: {shop: {transport: bus}}\n%s", r.mq.URL, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const sub = "subscriptions:\n- queue: billing\n  bindings: [\"orders.*\"]\n"
	s.run("validate", "--config", write(sub)).is(t, cli.ExitFindings, `exchange "shop"`)
	s.run("topology", "declare", "--config", write(sub)).is(t, cli.ExitOK)
	s.run("validate", "--config", write("")).is(t, cli.ExitOK, "no problem").not(t, "management_url")
	s.run("validate", "--config", write(sub)).is(t, cli.ExitOK, "no problem", "note: ", "transports.bus", "management_url")
	s.run("validate", "--json", "--config", write(sub)).is(t, cli.ExitOK, `"problems": []`, `"notes"`, "management_url")
	s.run("topology", "verify", "--config", write(sub)).is(t, 2, "management_url")
}
