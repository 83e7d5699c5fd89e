package asyncapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// Application is what a program sends and receives. It is a value.
type Application struct {
	// Title and Version are the application's name and release. Required.
	Title, Version string
	// Description is a text about it, in Markdown; default none.
	Description string
	// Sends are the messages that it stages.
	Sends []Message
	// Receives are the queues that it consumes.
	Receives []Queue
}

// Queue is what an application receives from one queue.
type Queue struct {
	// Subscription is the consumer's. Of it only Queue, which is required, and Bindings are read.
	Subscription waybill.Subscription
	// Messages are those that it has handlers for, at least one. Each must match a binding, if there are any.
	Messages []Message
}

// Message is a topic with its form. [Of] makes one.
type Message struct {
	// Topic is the routing key. Required.
	Topic string
	// ContentType is the media type of the body; empty: it is not said.
	ContentType string
	// Description is a text about the message, in Markdown; default none.
	Description string
	// Payload is the JSON Schema of the body; nil: it is not said.
	Payload json.RawMessage

	err error // of Of
}

// Of returns the message of a topic. If the codec writes JSON, Payload is the schema of T; set another one where that
// says too little.
func Of[T any](topic waybill.Topic[T]) Message {
	m := Message{Topic: topic.Name(), ContentType: topic.ContentType()}
	if isJSON(m.ContentType) {
		m.Payload, m.err = schemaFor[T]()
	}
	return m
}

// The parts of a document.
type (
	document struct {
		AsyncAPI   string               `json:"asyncapi"`
		Info       info                 `json:"info"`
		Channels   map[string]channel   `json:"channels,omitempty"`
		Operations map[string]operation `json:"operations,omitempty"`
	}
	info struct {
		Title       string `json:"title"`
		Version     string `json:"version"`
		Description string `json:"description,omitempty"`
	}
	channel struct {
		Address  string             `json:"address"`
		Messages map[string]message `json:"messages"`
	}
	message struct {
		Name        string          `json:"name"`
		ContentType string          `json:"contentType,omitempty"`
		Description string          `json:"description,omitempty"`
		Payload     json.RawMessage `json:"payload,omitempty"`
	}
	operation struct {
		Action   string `json:"action"`
		Channel  ref    `json:"channel"`
		Messages []ref  `json:"messages"`
		Queue    string `json:"x-waybill-queue,omitempty"`
	}
	ref struct {
		Ref string `json:"$ref"`
	}
)

// Document returns the AsyncAPI 3.0.0 document, as indented JSON. An error lists everything that is wrong.
func (a Application) Document() ([]byte, error) {
	d := document{
		AsyncAPI: "3.0.0", Info: info{a.Title, a.Version, a.Description},
		Channels: map[string]channel{}, Operations: map[string]operation{},
	}
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if a.Title == "" {
		bad("Title: is empty; name the application")
	}
	if a.Version == "" {
		bad("Version: is empty; name the release, such as 1.4.0")
	}
	for i := range a.Sends {
		m := &a.Sends[i]
		if err := d.add("send", "", m); err != nil {
			bad("Sends[%d]: %v", i, err)
		}
	}
	for i := range a.Receives {
		q := &a.Receives[i]
		sub := &q.Subscription
		if sub.Queue == "" {
			bad("Receives[%d]: Queue is empty; name the queue of the subscription", i)
		}
		if len(q.Messages) == 0 {
			bad("Receives[%d]: queue %q has no messages; pass those of its handlers", i, check.Clip(sub.Queue, 80))
		}
		for j := range q.Messages {
			m := &q.Messages[j]
			if len(sub.Bindings) > 0 && !isBound(sub.Bindings, m.Topic) {
				bad("Receives[%d]: no binding of queue %q matches topic %q; add the binding, or leave the message out",
					i, check.Clip(sub.Queue, 80), check.Clip(m.Topic, 80))
			} else if err := d.add("receive", sub.Queue, m); err != nil {
				bad("Receives[%d]: queue %q: %v", i, check.Clip(sub.Queue, 80), err)
			}
		}
	}
	if err := waybill.Invalid("waybill/asyncapi: document", problems...); err != nil {
		return nil, err
	}
	return json.MarshalIndent(d, "", "  ")
}

// add puts in a message, its channel and its operation.
func (d *document) add(action, queue string, m *Message) error {
	switch {
	case m.Topic == "":
		return errors.New("the topic is empty; name it")
	case check.Name(m.Topic) != "":
		return errors.New("topic " + check.Name(m.Topic))
	case strings.ContainsAny(m.Topic, "{}"):
		return fmt.Errorf("topic %q holds a brace, which AsyncAPI takes for a parameter; rename it", check.Clip(m.Topic, 80))
	case m.Payload == nil && m.err != nil:
		return fmt.Errorf("topic %q: %w; set Message.Payload", check.Clip(m.Topic, 80), m.err)
	case m.Payload != nil && !json.Valid(m.Payload):
		return fmt.Errorf("topic %q: Payload is not JSON; set a JSON Schema", check.Clip(m.Topic, 80))
	}
	now := message{m.Topic, m.ContentType, m.Description, m.Payload}
	if c, ok := d.Channels[m.Topic]; ok && !c.Messages[m.Topic].equal(&now) {
		return fmt.Errorf("topic %q was declared before, and differs; declare it once", check.Clip(m.Topic, 80))
	}
	d.Channels[m.Topic] = channel{m.Topic, map[string]message{m.Topic: now}}
	at := "#/channels/" + pointer(m.Topic)
	id := action + ":"
	if queue != "" {
		id += url.QueryEscape(queue) + ":" // so that no two pairs have one id
	}
	d.Operations[id+m.Topic] = operation{action, ref{at}, []ref{{at + "/messages/" + pointer(m.Topic)}}, queue}
	return nil
}

func (m message) equal(o *message) bool {
	return m.ContentType == o.ContentType && m.Description == o.Description && bytes.Equal(m.Payload, o.Payload)
}

// pointer returns a name as part of a JSON pointer in the fragment of a URI.
func pointer(name string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
}

func isBound(bindings []string, topic string) bool {
	words := strings.Split(topic, ".")
	return slices.ContainsFunc(bindings, func(b string) bool { return check.Matches(strings.Split(b, "."), words) })
}
