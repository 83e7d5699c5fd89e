package cli_test

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
)

// OP-01: typical mistakes in haste are reported, and are no silent success.
func TestMistakesAreSaid(t *testing.T) {
	t.Parallel()
	t.Run("no settings", func(t *testing.T) {
		t.Parallel()
		command(t, nil, "validate").is(t, cli.ExitFindings, "there are no settings: give --config")
	})
	s := newShop(t)
	s.settings = append(s.settings, "transports.mq.kind=rabbitmq", "transports.mq.url=amqp://127.0.0.1:1", "relays.a.store=shop")
	s.run("keys", "list", "--route", "nope").is(t, cli.ExitOK, "no key is blocked", "no relay of the configuration serves route nope")
	s.run("status", "--route", "nope").is(t, cli.ExitOK, "0 waiting", "no relay of the configuration serves route nope")
	s.run("list", "--route", "nope").is(t, cli.ExitOK, "no record matches", "no relay of the configuration serves route nope")
	for _, args := range [][]string{{"keys", "list"}, {"list"}, {"list", "--route", "default"}} {
		s.run(args...).not(t, "check its name")
	}
	for _, timeout := range []string{"0s", "-1s"} {
		s.run("status", "--timeout", timeout).is(t, cli.ExitUsage, "--timeout: "+timeout+" is no time to wait")
	}
	for listen, problem := range map[string]string{"127.0.0.1:99999": "is no address with a port", "127.0.0.1:-1": "is no address with a port", "127.0.0.1:9464": "", "127.0.0.1:http": ""} {
		a := command(t, append([]string{"http.listen=" + listen}, s.settings...), "config")
		if problem == "" {
			a.is(t, cli.ExitOK)
		} else {
			a.is(t, cli.ExitUsage, "http.listen", problem)
		}
	}
	s.stage(message("x", "a", waybill.Delay(1e15)), message("x", "b", waybill.Delay(1e15)))
	s.run("cancel", "--topic", "x", "--dry-run", "--progress").is(t, cli.ExitOK, "would be cancelled").not(t, "\ncancelled")
}

// A retry policy is checked where it stands, and a relay, a route and a subscription can name one.
func TestNamedRetryPolicies(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.settings = append(s.settings, "transports.mq.kind=rabbitmq", "transports.mq.url=amqp://127.0.0.1:1", "relays.a.store=shop", "relays.a.routes=[{backoff: slow}]",
		"subscriptions=[{queue: billing, retry: slow, in_process: slow}]")
	s.run("config").is(t, cli.ExitUsage, "relays.a.routes[0].backoff", `there is no retry policy "slow": add it to retry_policies`, "subscriptions[0].retry", "subscriptions[0].in_process")
	good := append([]string{"retry_policies.slow={base: 7m, cap: 5h}"}, s.settings...)
	if out := command(t, good, "config").is(t, cli.ExitOK, "retry_policies:").out; strings.Count(out, "base: 7m") != 4 {
		t.Errorf("not all that name the policy have it:\n%s", out)
	}
	bad := append([]string{"retry_policies.slow={base: -1s, factor: 0.5}"}, s.settings...)
	command(t, bad, "config").is(t, cli.ExitUsage, "retry_policies.slow.base: -1s is negative", "retry_policies.slow.factor: 0.5 is not between 1 and 1000")
}
