package mongo

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// actions are the privileges that a server asks for before it runs a command, as the manual of MongoDB has them.
var actions = map[string][]string{
	"find": {"find"}, "aggregate": {"find"}, "count": {"find"}, "distinct": {"find"}, "insert": {"insert"}, "update": {"update"},
	"delete": {"remove"}, "findAndModify": {"find", "update"}, "listIndexes": {"listIndexes"}, "create": {"createCollection"},
	"createIndexes": {"createIndex"}, "dropIndexes": {"dropIndex"}, "drop": {"dropCollection"}, "listCollections": {"listCollections"},
	"dropDatabase": {"dropDatabase"},
}

// refusal is the error of a server that lacks a privilege of the user. Its text names the privilege and the roles of
// [Store.Roles] that grant it. The server's text is left out: it has the whole command, values of documents included.
type refusal struct {
	text string
	err  error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.err }

// notAuthorized is the text of MongoDB: the database, the command, its collection, and the rest of the command.
var notAuthorized = regexp.MustCompile(`(?s)not authorized on (\S+) to execute command \{ ?"?(\w+)"?: (?:"([^"]*)")?(.*)`)

func refused(err error) error {
	const page = "docs/mongodb.md#privileges"
	ce, ok := errors.AsType[driver.CommandError](err)
	if ok && strings.Contains(ce.Message, "requires authentication") {
		return &refusal{"the client has no user: give its URI user, password and authSource", err}
	}
	m := notAuthorized.FindStringSubmatch(ce.Message)
	if m == nil {
		return &refusal{"the user lacks a privilege that the server does not name: grant it the role of its program, " + page, err}
	}
	database, command, collection, rest := m[1], m[2], m[3], m[4]
	needs := actions[command]
	if strings.Contains(rest, "$changeStream") {
		needs = []string{"changeStream", "find"}
	}
	lacks := fmt.Sprintf("the command %s on %s.%s", command, database, collection)
	if needs != nil {
		lacks = fmt.Sprintf("%s on %s.%s", strings.Join(needs, " and "), database, collection)
	}
	if roles := rolesWith(collection, needs); len(roles) > 0 {
		return &refusal{fmt.Sprintf("the user lacks the privilege of %s: grant it the role of its program, if that is one of %s, which may do it (%s)",
			lacks, strings.Join(roles, ", "), page), err}
	}
	return &refusal{fmt.Sprintf("the user lacks the privilege of %s: no role of Store.Roles has it, so use another user, or grant it by a role of your own (%s)",
		lacks, page), err}
}

// rolesWith returns the roles of Store.Roles that grant all of needs on a collection, whatever the prefix of the store.
func rolesWith(collection string, needs []string) (roles []string) {
	if len(needs) == 0 {
		return nil
	}
	for program, list := range grants {
		prefix, found := DefaultPrefix, map[string]bool{}
		for _, g := range list {
			for _, a := range g.actions {
				if g.collections == nil {
					found[a] = found[a] || collection == ""
				}
				for _, c := range g.collections {
					if p, ok := strings.CutSuffix(collection, c); ok {
						prefix, found[a] = p, true
					}
				}
			}
		}
		if !slices.ContainsFunc(needs, func(a string) bool { return !found[a] }) {
			roles = append(roles, prefix+program)
		}
	}
	slices.Sort(roles)
	return roles
}
