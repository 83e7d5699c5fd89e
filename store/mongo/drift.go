package mongo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/waybill-go/waybill/admin"
)

var _ admin.DriftChecker = (*Store)(nil)

// metaDocs are the documents of the meta collection that the store needs.
var metaDocs = []string{"cleaner", "epoch", "hlc", "schema", "sequence"}

// liveIndex is an index as the server describes it.
type liveIndex struct {
	Name    string `bson:"name"`
	Keys    bson.D `bson:"key"`
	Unique  bool   `bson:"unique"`
	Partial bson.D `bson:"partialFilterExpression"`
}

// Drift lists the differences between the collections and the needs of this release: indexes that are missing or have
// other fields, other uniqueness or another filter, and documents of the meta collection that are missing. It ignores
// other indexes.
func (s *Store) Drift(ctx context.Context) ([]admin.Difference, error) {
	var out []admin.Difference
	missing := func(object, want string) {
		out = append(out, admin.Difference{Object: object, Want: want, Have: "missing"})
	}
	names := s.collections()
	have := map[string]map[string]string{}
	for i := range needed {
		ix := &needed[i]
		coll := *names[ix.collection]
		if have[ix.collection] == nil {
			cur, err := coll.Indexes().List(ctx)
			if hasCode(err, 26) {
				missing(coll.Name(), "a collection")
				have[ix.collection] = map[string]string{}
				continue
			}
			var live []liveIndex
			if err == nil {
				err = cur.All(ctx, &live)
			}
			if err != nil {
				return nil, classify("drift", err)
			}
			shapes := map[string]string{}
			for _, l := range live {
				shapes[l.Name] = shape(l.Keys, l.Partial, l.Unique)
			}
			have[ix.collection] = shapes
		}
		name := s.opts.Prefix + ix.name
		want, got := shape(ix.keys, ix.partial, ix.unique), have[ix.collection][name]
		switch object := "index " + name + " of " + coll.Name(); {
		case got == "":
			missing(object, want)
		case got != want:
			out = append(out, admin.Difference{Object: object, Want: want, Have: got})
		}
	}
	cur, err := s.meta.Find(ctx, bson.M{})
	if err != nil {
		return nil, classify("drift", err)
	}
	var docs []struct {
		ID string `bson:"_id"`
	}
	if err := cur.All(ctx, &docs); err != nil {
		return nil, classify("drift", err)
	}
	for _, id := range metaDocs {
		if !slices.ContainsFunc(docs, func(d struct {
			ID string `bson:"_id"`
		},
		) bool {
			return d.ID == id
		}) {
			missing(fmt.Sprintf("document %q of %s", id, s.meta.Name()), "a document")
		}
	}
	return out, nil
}

// shape describes an index. Numbers of any type are the same.
func shape(keys, partial bson.D, unique bool) string {
	var b strings.Builder
	if unique {
		b.WriteString("unique ")
	}
	b.WriteString("index (")
	for i, k := range keys {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %v", k.Key, k.Value)
	}
	b.WriteString(")")
	if len(partial) > 0 {
		text, err := json.Marshal(plain(partial))
		if err != nil {
			text = []byte(err.Error())
		}
		b.WriteString(" where " + string(text))
	}
	return b.String()
}

// plain returns a document as a map, whose fields JSON sorts.
func plain(d bson.D) map[string]any {
	out := map[string]any{}
	for _, e := range d {
		if sub, ok := e.Value.(bson.D); ok {
			out[e.Key] = plain(sub)
		} else {
			out[e.Key] = e.Value
		}
	}
	return out
}
