package mongo

import (
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// grant is what a role may do with collections of the store; none = with the whole database.
type grant struct{ collections, actions []string }

var (
	crud    = []string{"find", "insert", "update", "remove"}
	working = []string{"outbox", "members", "fences", "routes", "notices", "tickets", "meta"}
	// checks is what Check needs: it compares the indexes, and tries a transaction out.
	checks = []grant{
		{[]string{"outbox", "notices", "inbox"}, []string{"listIndexes"}},
		{[]string{"tickets"}, []string{"find", "insert", "remove"}},
		{[]string{"meta"}, []string{"find"}},
	}
)

// grants are what each program needs; docs/mongodb.md has the same.
var grants = map[string][]grant{
	"migration": {
		{append([]string{"inbox", "audit"}, working...), []string{"createCollection", "createIndex", "listIndexes", "find", "insert"}},
	},
	"producer": {
		{[]string{"outbox", "tickets", "notices"}, crud},
		{[]string{"meta"}, []string{"find", "update"}},
		{[]string{"routes"}, []string{"find"}},
	},
	"relay": append([]grant{
		{working, crud},
		{[]string{"audit"}, []string{"find", "insert"}},
		{nil, []string{"changeStream", "find"}},
	}, checks...),
	"operator": append([]grant{
		{working, crud},
		{[]string{"audit"}, []string{"find", "insert"}},
	}, checks...),
	"consumer": append([]grant{
		{[]string{"inbox"}, []string{"find", "insert", "remove"}},
	}, checks...),
}

// Roles returns the commands createRole of the roles of the store's programs, by the name of the role: Options.Prefix
// and "migration", "producer", "relay", "operator" or "consumer". Run one on the store's database, as a user that may
// create roles, and grant the role to the program's user. MongoDB has no rights on fields: a producer can change every
// record of the outbox. A relay that waits by change streams can read the whole database, as these demand; leave that
// privilege out, and it polls.
func (s *Store) Roles() map[string]bson.D {
	out := map[string]bson.D{}
	for program, list := range grants {
		var privileges bson.A
		actions := map[string][]string{}
		for _, g := range list {
			names := []string{""}
			if g.collections != nil {
				names = nil
				for _, c := range g.collections {
					names = append(names, s.opts.Prefix+c)
				}
			}
			for _, name := range names {
				actions[name] = append(actions[name], g.actions...)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(actions)) {
			slices.Sort(actions[name])
			privileges = append(privileges, bson.D{
				{Key: "resource", Value: bson.D{{Key: "db", Value: s.db.Name()}, {Key: "collection", Value: name}}},
				{Key: "actions", Value: slices.Compact(actions[name])},
			})
		}
		out[s.opts.Prefix+program] = bson.D{
			{Key: "createRole", Value: s.opts.Prefix + program}, {Key: "privileges", Value: privileges}, {Key: "roles", Value: bson.A{}},
		}
	}
	return out
}
