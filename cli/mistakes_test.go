package cli_test

import (
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
	s.run("keys", "list").not(t, "check its name")
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
