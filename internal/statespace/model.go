package statespace

// This file decides, once for each type, how its values are copied and hashed. The search spends nearly all of its time
// there, so the decision is a tree of functions over addresses, not a walk by reflection.

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// Rules name what is not copied or not hashed. A field is named by package, type and field, such as "memory.Store.mu".
type Rules struct {
	// Unhashed fields decide about nothing: they are derived from others, or for people. They are copied. A channel
	// is made anew.
	Unhashed []string
	// Shared fields are neither copied nor hashed: a copy has the same value. They never change.
	Shared []string
	// While says that a field decides about something only while a bool field of the same struct is set.
	While map[string]string
	// Types are those that a world holds behind interfaces.
	Types []reflect.Type
	// Age is the age from which all times are the same: nothing depends on how much longer ago they were. Times
	// are hashed relative to the time of the world.
	Age time.Duration
	// Order compares two pointers that are keys of a map, by their targets. Without it no such map has more than
	// one entry.
	Order func(a, b any) int
}

// Model copies and hashes worlds of one type.
type Model[W any] struct {
	age  time.Duration
	root *plan
}

// plan is how values of one type are copied and hashed.
type plan struct {
	t    reflect.Type
	flat bool // an assignment copies it: copy is nil
	copy copyFunc
	hash hashFunc
}

// planner makes the plans of all types that a world refers to.
type planner struct {
	plans    map[reflect.Type]*plan
	unhashed map[string]bool
	shared   map[string]bool
	while    map[string]string
	used     map[string]bool
	order    func(a, b any) int
	problems []string
}

var (
	timeType  = reflect.TypeFor[time.Time]()
	errorType = reflect.TypeFor[error]()
	mutexType = reflect.TypeFor[sync.Mutex]()
)

// NewModel returns how worlds of type W are copied and hashed. It fails if a field can neither be hashed nor is named,
// or if a name fits no field.
func NewModel[W any](rules Rules) (*Model[W], error) {
	p := &planner{plans: map[reflect.Type]*plan{}, unhashed: set(rules.Unhashed), shared: set(rules.Shared), while: rules.While, used: map[string]bool{}, order: rules.Order}
	root := p.of(reflect.TypeFor[W](), "the world")
	for _, t := range rules.Types {
		p.of(t, t.String())
	}
	for _, name := range slices.Concat(rules.Unhashed, rules.Shared, slices.Sorted(maps.Keys(rules.While))) {
		if !p.used[name] {
			p.problem("%s fits no field: remove it from the rules", name)
		}
	}
	if len(p.problems) > 0 {
		return nil, fmt.Errorf("waybill/statespace: the rules do not fit the world:\n%s", strings.Join(p.problems, "\n"))
	}
	return &Model[W]{age: rules.Age, root: root}, nil
}

func set(names []string) map[string]bool {
	m := map[string]bool{}
	for _, name := range names {
		m[name] = true
	}
	return m
}

func (p *planner) problem(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// of returns the plan of a type. where names the first field that has it, for errors.
func (p *planner) of(t reflect.Type, where string) *plan {
	if pl := p.plans[t]; pl != nil {
		return pl
	}
	pl := &plan{t: t}
	p.plans[t] = pl // before its parts: types can refer to themselves
	switch t {
	case timeType:
		pl.flat, pl.hash = true, hashTime
	case errorType:
		pl.flat, pl.hash = true, hashError // errors do not change
	case mutexType:
		pl.flat, pl.hash = true, hashNothing // it is free between two events
	default:
		p.byKind(pl, where)
	}
	return pl
}

func (p *planner) byKind(pl *plan, where string) {
	t := pl.t
	switch t.Kind() { //nolint:exhaustive // the others are named in the rules
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		pl.flat, pl.hash = true, hash8
	case reflect.Int16, reflect.Uint16:
		pl.flat, pl.hash = true, hash16
	case reflect.Int32, reflect.Uint32, reflect.Float32:
		pl.flat, pl.hash = true, hash32
	case reflect.Int, reflect.Uint, reflect.Int64, reflect.Uint64, reflect.Uintptr, reflect.Float64:
		pl.flat, pl.hash = true, hash64
	case reflect.String:
		pl.flat, pl.hash = true, hashString
	case reflect.Pointer:
		e := p.of(t.Elem(), where)
		pl.copy, pl.hash = copyPointer(t, e), hashPointer(e)
	case reflect.Slice:
		e := p.of(t.Elem(), where)
		pl.copy, pl.hash = copySlice(t, e), hashSlice(t, e)
	case reflect.Array:
		e := p.of(t.Elem(), where)
		pl.flat = e.flat
		pl.copy, pl.hash = copyArray(t, e), hashArray(t, e)
		if e.flat {
			pl.copy = nil
		}
	case reflect.Map:
		k, e := p.of(t.Key(), where), p.of(t.Elem(), where)
		pl.copy, pl.hash = copyMap(t, k, e), hashMap(t, k, e, p.order)
	case reflect.Struct:
		p.structure(pl)
	case reflect.Interface:
		pl.copy, pl.hash = copyInterface(t, p), hashInterface(t, p)
	default:
		p.problem("%s has a %s, which can be neither copied nor hashed: name it in the rules", where, t)
		pl.flat, pl.hash = true, hashNothing
	}
}

// part is a field that a copy of the bytes does not copy, or that is hashed.
type part struct {
	offset uintptr
	plan   *plan
}

func (p *planner) structure(pl *plan) {
	t := pl.t
	var deep, hashed []part
	for f := range t.Fields() {
		name := t.String() + "." + f.Name
		switch {
		case p.shared[name]:
			p.used[name] = true
			continue
		case p.unhashed[name]:
			p.used[name] = true
		}
		if f.Type.Kind() == reflect.Chan && p.unhashed[name] {
			deep = append(deep, part{f.Offset, &plan{t: f.Type, copy: copyChan(f.Type)}})
			continue
		}
		e := p.of(f.Type, name)
		if !p.flat(f.Type) {
			deep = append(deep, part{f.Offset, e})
		}
		if flag, ok := t.FieldByName(p.while[name]); ok && flag.Type.Kind() == reflect.Bool {
			p.used[name] = true
			e = &plan{t: f.Type, hash: hashWhile(f.Offset, flag.Offset, e)}
		}
		if !p.unhashed[name] {
			hashed = append(hashed, part{f.Offset, e})
		}
	}
	pl.flat = len(deep) == 0
	pl.hash = hashStruct(hashed)
	if !pl.flat {
		pl.copy = copyStruct(deep)
	}
}

// flat reports whether an assignment copies values of a type.
func (p *planner) flat(t reflect.Type) bool {
	switch t.Kind() { //nolint:exhaustive // the plan knows the others
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return false
	case reflect.Interface:
		return t == errorType
	}
	return p.plans[t].flat
}
