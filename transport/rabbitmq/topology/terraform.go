package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Terraform returns the topology as resources of the provider cyrilgdn/rabbitmq, in HCL. The virtual host and the users
// must be there or stand in another file; the provider's own configuration (endpoint, user, password) too. The provider
// itself cannot manage names with "@" or "/".
func (t Topology) Terraform(vhost string, users Users) string {
	var b strings.Builder
	resource := labels{}
	b.WriteString("terraform {\n  required_providers {\n    rabbitmq = {\n      source = \"cyrilgdn/rabbitmq\"\n    }\n  }\n}\n")
	for _, e := range t.Exchanges {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_exchange\" %q {\n  name  = %s\n  vhost = %s\n\n"+
			"  settings {\n    type        = %s\n    durable     = true\n    auto_delete = false\n  }\n}\n",
			resource.of("exchange", e.Name), hcl(e.Name), hcl(vhost), hcl(e.Kind))
	}
	for _, q := range t.Queues {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_queue\" %q {\n  name  = %s\n  vhost = %s\n\n"+
			"  settings {\n    durable     = true\n    auto_delete = false\n    arguments_json = jsonencode({\n",
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
		fmt.Fprintf(&b, "\nresource \"rabbitmq_binding\" %q {\n"+
			"  source           = rabbitmq_exchange.%s.name\n  vhost            = %s\n  destination      = rabbitmq_queue.%s.name\n"+
			"  destination_type = \"queue\"\n  routing_key      = %s\n}\n",
			resource.of("binding", fmt.Sprintf("%s_%d", x.Queue, i)), resource.of("exchange", x.Exchange), hcl(vhost),
			resource.of("queue", x.Queue), hcl(x.Key))
	}
	for _, p := range t.userPermissions(users) {
		fmt.Fprintf(&b, "\nresource \"rabbitmq_permissions\" %q {\n  user  = %s\n  vhost = %s\n\n"+
			"  permissions {\n    configure = %s\n    write     = %s\n    read      = %s\n  }\n}\n",
			resource.of("permissions", p.user), hcl(p.user), hcl(vhost), hcl(p.Configure), hcl(p.Write), hcl(p.Read))
	}
	return b.String()
}

// labels gives every object of a kind a Terraform label of its own: its name with forbidden characters replaced.
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
