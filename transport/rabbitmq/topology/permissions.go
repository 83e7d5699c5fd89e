package topology

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Permission is what a user may do on a virtual host: three regular expressions over names of exchanges and queues.
// "^$" permits nothing.
type Permission struct {
	Configure, Write, Read string
}

// Permissions are the least permissions of each role. With rabbitmq.Options.Passive no role needs to configure
// anything.
type Permissions struct {
	// Relay publishes: it writes to the exchange.
	Relay Permission
	// Consumer reads the subscriptions' queues, and writes to their dead-letter exchanges and to shared delay
	// exchanges. By a shared delay exchange it reaches every queue of the virtual host.
	Consumer Permission
	// Operator lists, replays and purges parked messages: it reads the dead-letter queues, and writes to
	// the dead-letter exchanges.
	Operator Permission
}

// Users names the users of the roles in an export. An empty name leaves the role out; one user may have several roles.
type Users struct {
	Relay, Consumer, Operator string
}

// grant is a permission as names.
type grant struct{ write, read []string }

func (g grant) permission() Permission {
	return Permission{Configure: "^$", Write: exactly(g.write), Read: exactly(g.read)}
}

// exactly returns the regular expression that matches names and nothing else. RabbitMQ has Perl's expressions, in which
// QuoteMeta's escapes mean the same; a name cannot end with the newline that $ would overlook.
func exactly(names []string) string {
	if len(names) == 0 {
		return "^$"
	}
	quoted := make([]string, 0, len(names))
	for _, n := range names {
		quoted = append(quoted, regexp.QuoteMeta(n))
	}
	if len(quoted) == 1 {
		return "^" + quoted[0] + "$"
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

func (t *Topology) grants() (relay, consumer, operator grant) {
	relay.write = []string{t.names.Exchange()}
	if len(t.subscriptions) == 0 {
		return relay, consumer, operator
	}
	consumer.write = t.RetryExchanges()
	for _, sub := range t.subscriptions {
		operator.write = append(operator.write, t.names.DeadLetterExchange(sub))
		consumer.read = append(consumer.read, t.names.Queue(sub))
		operator.read = append(operator.read, t.names.DeadLetterQueue(sub))
	}
	return relay, consumer, operator
}

// Permissions returns the least permissions of each role.
func (t Topology) Permissions() Permissions {
	relay, consumer, operator := t.grants()
	return Permissions{relay.permission(), consumer.permission(), operator.permission()}
}

// userPermission is what one user may do, over all its roles.
type userPermission struct {
	user string
	Permission
}

func (t *Topology) userPermissions(u Users) []userPermission {
	relay, consumer, operator := t.grants()
	all := map[string]grant{}
	for _, r := range []struct {
		user string
		grant
	}{{u.Relay, relay}, {u.Consumer, consumer}, {u.Operator, operator}} {
		if r.user == "" {
			continue
		}
		g := all[r.user]
		for _, n := range r.write {
			if !slices.Contains(g.write, n) {
				g.write = append(g.write, n)
			}
		}
		g.read = append(g.read, r.read...)
		all[r.user] = g
	}
	var out []userPermission
	for _, user := range slices.Sorted(maps.Keys(all)) {
		out = append(out, userPermission{user, all[user].permission()})
	}
	return out
}
