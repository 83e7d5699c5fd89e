package statespace

// This file knows the types that a world holds behind interfaces. They are met when a world is copied or hashed, not
// before.

import (
	"reflect"
	"strings"
	"sync"
)

var planning sync.Mutex

// dynamic returns the plan of a type that an interface holds.
func (p *planner) dynamic(t reflect.Type) *plan {
	planning.Lock()
	defer planning.Unlock()
	if pl := p.plans[t]; pl != nil {
		return pl
	}
	pl := p.of(t, t.String())
	if len(p.problems) > 0 {
		panic("waybill/statespace: the rules do not fit what an interface holds:\n" + strings.Join(p.problems, "\n"))
	}
	return pl
}
