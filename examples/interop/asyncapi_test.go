package interop_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/asyncapi"
	"github.com/waybill-go/waybill/internal/tier"
)

// published returns the schema of AsyncAPI 3.0.0, as npm's @asyncapi/specs has it.
func published(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	text, err := os.ReadFile("node/node_modules/@asyncapi/specs/schemas/3.0.0.json")
	if errors.Is(err, fs.ErrNotExist) {
		tier.Missing(t, "%v; scripts/servers installs it", err)
	} else if err != nil {
		t.Fatal(err)
	}
	// The validator knows the draft by this name only.
	text = bytes.ReplaceAll(text, []byte(`"http://json-schema.org/draft-07/schema"`), []byte(`"http://json-schema.org/draft-07/schema#"`))
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TR-12: the AsyncAPI document fits AsyncAPI's own schema, with any names of topics and queues, and each reference has
// a target.
func TestAsyncAPI(t *testing.T) {
	t.Parallel()
	odd := waybill.NewTopic("a b/c~d%20.ü#?", waybill.Bytes(""))
	document, err := asyncapi.Application{
		Title: "shop", Version: "1", Description: "*sells*",
		Sends: []asyncapi.Message{asyncapi.Of(placed), asyncapi.Of(odd)},
		Receives: []asyncapi.Queue{
			{Subscription: waybill.Subscription{Queue: "bil:ling", Bindings: []string{"orders.#"}}, Messages: []asyncapi.Message{asyncapi.Of(placed)}},
			{Subscription: waybill.Subscription{Queue: "any"}, Messages: []asyncapi.Message{asyncapi.Of(odd), asyncapi.Of(placed)}},
		},
	}.Document()
	if err != nil {
		t.Fatal(err)
	}
	schema := published(t)
	validate := func(text string) error {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	if err := validate(string(document)); err != nil {
		t.Errorf("%v\n%s", err, document)
	}
	for _, word := range []string{`"title"`, `"address"`, `"action"`, `"x-waybill-queue"`} {
		if validate(strings.ReplaceAll(string(document), word, `"wrong"`)) == nil {
			t.Errorf("without %s it fits, too", word)
		}
	}
	var d struct {
		Channels map[string]struct {
			Messages map[string]any `json:"messages"`
		} `json:"channels"`
		Operations map[string]struct {
			Channel  reference   `json:"channel"`
			Messages []reference `json:"messages"`
		} `json:"operations"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Channels) != 2 || len(d.Operations) != 5 {
		t.Errorf("%d channels, %d operations", len(d.Channels), len(d.Operations))
	}
	for id, o := range d.Operations {
		for _, r := range append(o.Messages, o.Channel) {
			path := r.path(t)
			c, ok := d.Channels[path[1]]
			if ok && len(path) == 4 {
				_, ok = c.Messages[path[3]]
			}
			if !ok {
				t.Errorf("%s leads nowhere: %s", id, r.Ref)
			}
		}
	}
}

type reference struct {
	Ref string `json:"$ref"`
}

// path returns the names that the reference leads through.
func (r reference) path(t *testing.T) []string {
	t.Helper()
	u, err := url.Parse(r.Ref)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Split(strings.TrimPrefix(u.Fragment, "/"), "/")
	for i, w := range words {
		words[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(w)
	}
	return words
}
