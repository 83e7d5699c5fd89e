package rabbitmq

import (
	"bytes"
	"encoding/json"
	"fmt"
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

// Permissions are the least permissions of each role. Nobody needs to configure anything when Options.Passive is set.
type Permissions struct {
	// Relay publishes: it writes to the exchange.
	Relay Permission
	// Consumer reads the subscriptions' queues, and writes to the delay exchanges and to the dead-letter exchange.
	Consumer Permission
	// Operator lists, replays and purges parked messages: it reads the dead-letter queues, and writes to the
	// dead-letter exchange.
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
	relay.write = []string{t.names.exchange}
	if len(t.queues) == 0 {
		return relay, consumer, operator
	}
	consumer = grant{write: t.copiesTo(), read: t.queues}
	operator.write = []string{t.names.dlx()}
	for _, q := range t.queues {
		operator.read = append(operator.read, deadLetterQueue(q))
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

// Definitions returns the topology as RabbitMQ's definitions file, for rabbitmqctl import_definitions, the management
// API, or load_definitions at boot. It names the virtual host, and sets the permissions of users, which must be there
// already: passwords belong in no export. An import adds what is missing; it changes no queue that exists.
func (t Topology) Definitions(vhost string, users Users) ([]byte, error) {
	type exchange struct {
		Name       string         `json:"name"`
		VHost      string         `json:"vhost"`
		Type       string         `json:"type"`
		Durable    bool           `json:"durable"`
		AutoDelete bool           `json:"auto_delete"`
		Internal   bool           `json:"internal"`
		Arguments  map[string]any `json:"arguments"`
	}
	type queue struct {
		Name       string         `json:"name"`
		VHost      string         `json:"vhost"`
		Durable    bool           `json:"durable"`
		AutoDelete bool           `json:"auto_delete"`
		Arguments  map[string]any `json:"arguments"`
	}
	type binding struct {
		Source          string         `json:"source"`
		VHost           string         `json:"vhost"`
		Destination     string         `json:"destination"`
		DestinationType string         `json:"destination_type"`
		RoutingKey      string         `json:"routing_key"`
		Arguments       map[string]any `json:"arguments"`
	}
	type permission struct {
		User      string `json:"user"`
		VHost     string `json:"vhost"`
		Configure string `json:"configure"`
		Write     string `json:"write"`
		Read      string `json:"read"`
	}
	var file struct {
		VHosts []struct {
			Name string `json:"name"`
		} `json:"vhosts"`
		Permissions []permission `json:"permissions,omitempty"`
		Exchanges   []exchange   `json:"exchanges"`
		Queues      []queue      `json:"queues"`
		Bindings    []binding    `json:"bindings"`
	}
	file.VHosts = append(file.VHosts, struct {
		Name string `json:"name"`
	}{vhost})
	none := map[string]any{}
	for _, p := range t.userPermissions(users) {
		file.Permissions = append(file.Permissions, permission{p.user, vhost, p.Configure, p.Write, p.Read})
	}
	for _, e := range t.Exchanges {
		file.Exchanges = append(file.Exchanges, exchange{Name: e.Name, VHost: vhost, Type: e.Kind, Durable: true, Arguments: none})
	}
	for _, q := range t.Queues {
		file.Queues = append(file.Queues, queue{Name: q.Name, VHost: vhost, Durable: true, Arguments: q.Arguments})
	}
	for _, b := range t.Bindings {
		file.Bindings = append(file.Bindings, binding{b.Exchange, vhost, b.Queue, "queue", b.Key, none})
	}
	return indented(file)
}

func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("waybill/rabbitmq: definitions: %w", err)
	}
	return b.Bytes(), nil
}

// Terraform returns the topology as resources of the provider cyrilgdn/rabbitmq, in HCL. The virtual host and the users
// must be there or stand in another file; the provider's own configuration (endpoint, user, password) too. The provider
// itself cannot manage names with "@" or "/".
func (t Topology) Terraform(vhost string, users Users) string {
	var b strings.Builder
	resource := labels{}
	b.WriteString("terraform {\n  required_providers {\n    rabbitmq = {\n      source = \"cyrilgdn/rabbitmq\"\n    }\n  }\n}\n")
	for _, e := range t.Exchanges {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_exchange\" %q {\n  name  = %s\n  vhost = %s\n\n  settings {\n    type        = %s\n    durable     = true\n    auto_delete = false\n  }\n}\n",
			resource.of("exchange", e.Name), hcl(e.Name), hcl(vhost), hcl(e.Kind))
	}
	for _, q := range t.Queues {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_queue\" %q {\n  name  = %s\n  vhost = %s\n\n  settings {\n    durable     = true\n    auto_delete = false\n    arguments_json = jsonencode({\n",
			resource.of("queue", q.Name), hcl(q.Name), hcl(vhost))
		for _, name := range slices.Sorted(maps.Keys(q.Arguments)) {
			value := fmt.Sprint(q.Arguments[name])
			if s, ok := q.Arguments[name].(string); ok {
				value = hcl(s)
			}
			fmt.Fprintf(&b, "      %s = %s\n", hcl(name), value)
		}
		b.WriteString("    })\n  }\n}\n")
	}
	for i, x := range t.Bindings {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_binding\" %q {\n  source           = rabbitmq_exchange.%s.name\n  vhost            = %s\n  destination      = rabbitmq_queue.%s.name\n"+
			"  destination_type = \"queue\"\n  routing_key      = %s\n}\n",
			resource.of("binding", fmt.Sprintf("%s_%d", x.Queue, i)), resource.of("exchange", x.Exchange), hcl(vhost), resource.of("queue", x.Queue), hcl(x.Key))
	}
	for _, p := range t.userPermissions(users) {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_permissions\" %q {\n  user  = %s\n  vhost = %s\n\n  permissions {\n    configure = %s\n    write     = %s\n    read      = %s\n  }\n}\n",
			resource.of("permissions", p.user), hcl(p.user), hcl(vhost), hcl(p.Configure), hcl(p.Write), hcl(p.Read))
	}
	return b.String()
}

// labels gives every object of a kind a Terraform label of its own: its name with what may not stand there replaced.
type labels map[string]string

func (l labels) of(kind, name string) string {
	id := kind + "\x00" + name
	if label, ok := l[id]; ok {
		return label
	}
	label := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	if label == "" || strings.IndexByte("0123456789-", label[0]) >= 0 {
		label = "_" + label
	}
	for base, n := label, 2; slices.Contains(slices.Collect(maps.Values(l.only(kind))), label); n++ {
		label = fmt.Sprintf("%s_%d", base, n)
	}
	l[id] = label
	return label
}

func (l labels) only(kind string) labels {
	out := labels{}
	for id, label := range l {
		if strings.HasPrefix(id, kind+"\x00") {
			out[id] = label
		}
	}
	return out
}

// hcl quotes s for HCL, where ${ and %{ begin a template.
func hcl(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case (c == '$' || c == '%') && i+1 < len(s) && s[i+1] == '{':
			b.WriteByte(c)
			b.WriteByte(c)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(&b, "\\u%04x", c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
