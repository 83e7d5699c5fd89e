package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
)

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
