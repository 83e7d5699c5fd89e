package tree_test

import (
	"go/ast"
	"go/types"
	"slices"
	"testing"
)

// The stores that decide by package core/rules. store/postgres decides in SQL: truth tables compare it with the rules.
var deciders = []string{"store/memory", "store/sqlite", "store/mongo", "contrib/mysql"}

// unasked are the stores that have no use for a rule, with the reason.
var unasked = map[string]map[string]string{
	"Publish": {
		"store/sqlite": "one statement ends all published records, unread",
		"store/mongo":  "one statement ends all published records, unread",
	},
	"NewSample":   {"store/memory": "its counts are exact"},
	"RepairMark":  {"store/memory": "it changes the message itself"},
	"Decided":     {"contrib/mysql": "it has no decisions of operators"},
	"HeadReason":  {"contrib/mysql": "it has no decisions of operators"},
	"BlockedKeys": {"contrib/mysql": "it has no decisions of operators"},
	"SameLife":    {"contrib/mysql": "its statement for a release asks"},
}

// called returns the names that the package in dir selects: of package rules, or of any value.
func called(t *testing.T, dir string) (ofRules, ofAny map[string]bool) {
	t.Helper()
	ofRules, ofAny = map[string]bool{}, map[string]bool{}
	for _, file := range checkPackage(t, dir).files {
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				ofAny[sel.Sel.Name] = true
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "rules" {
					ofRules[sel.Sel.Name] = true
				}
			}
			return true
		})
	}
	return ofRules, ofAny
}

// Every store asks every rule, and a truth table has it. TE-11.
func TestStoresAskTheRules(t *testing.T) {
	t.Parallel()
	var rules []string
	scope := checkPackage(t, "core/rules").pkg.Scope()
	for _, name := range scope.Names() { // Decided asks Decides
		if f, ok := scope.Lookup(name).(*types.Func); ok && f.Exported() && name != "Decides" {
			rules = append(rules, name)
		}
	}
	if len(rules) < 18 {
		t.Fatalf("only these rules were found: %v", rules)
	}
	methods := []string{"Obstructs", "Shown"}
	for _, dir := range deciders {
		ofRules, ofAny := called(t, dir)
		for _, rule := range rules {
			why := unasked[rule][dir]
			if ofRules[rule] == (why != "") {
				t.Errorf("%s asks rules.%s: %t; the reason not to ask is %q", dir, rule, ofRules[rule], why)
			}
		}
		for _, method := range methods {
			if !ofAny[method] {
				t.Errorf("%s does not ask rules.Row.%s", dir, method)
			}
		}
	}
	_, inTables := called(t, "core/storetest")
	apart := []string{"RepairMark", "NewSample", "SameLife"} // which have tests of their own
	for _, rule := range append(rules, append(methods, "Counted", "Decide", "Head", "Next", "Ahead")...) {
		if inTables[rule] == slices.Contains(apart, rule) {
			t.Errorf("a truth table has rules.%s: %t", rule, inTables[rule])
		}
	}
}
