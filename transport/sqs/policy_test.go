package sqs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sharedtest"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// The policies are a contract with the operators that deploy them.
func TestPolicy(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, c := range []struct {
		role sqstransport.Role
		opts sqstransport.Options
	}{
		{sqstransport.RoleRelay, sqstransport.Options{Prefix: "prod-"}},
		{sqstransport.RoleConsumer, sqstransport.Options{Prefix: "prod-", Passive: true}},
		{sqstransport.RoleConsumer, sqstransport.Options{Prefix: "prod-", FIFO: true}},
		{sqstransport.RoleOperator, sqstransport.Options{Prefix: "prod-"}},
	} {
		text, err := c.opts.Policy(c.role, "eu-central-1", "123456789012", "billing", "audit")
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(text)
	}
	sharedtest.Golden(t, "testdata/policies.golden", b.String(), "")

	_, err := sqstransport.Options{Prefix: "a b"}.Policy("boss", "here", "1", "x-dlq")
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"Prefix", "role", "region", "account", "x-dlq"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}
