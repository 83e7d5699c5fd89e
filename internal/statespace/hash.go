package statespace

// This file hashes worlds. Equal worlds have equal hashes, wherever their values are in memory: a pointer is hashed by
// its target, or, when that was hashed already, by the place in the order. Maps are hashed by their keys, in order.

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"time"
	"unsafe"
)

type hashFunc func(h *hasher, at unsafe.Pointer)

type hasher struct {
	sum  uint64
	ids  map[address]uint64
	last address // see copier
	id   uint64
	now  time.Time
	age  time.Duration
}

// Hash returns the hash of a world at its time.
func (m *Model[W]) Hash(w *W, now time.Time) uint64 {
	h := &hasher{sum: 0x9E3779B97F4A7C15, ids: make(map[address]uint64, 256), now: now, age: m.age}
	h.ids[address{unsafe.Pointer(w), m.root}] = 0 //nolint:gosec // addresses are this package's business
	m.root.hash(h, unsafe.Pointer(w))             //nolint:gosec // see above
	return h.sum
}

// add mixes a number into the hash. It is the step of wyhash: a multiplication to 128 bits, folded.
func (h *hasher) add(v uint64) {
	hi, lo := bits.Mul64(h.sum^v^0xA0761D6478BD642F, h.sum+0xE7037ED1A0B428DB)
	h.sum = hi ^ lo ^ bits.RotateLeft64(v, 29)
}

func (h *hasher) addString(s string) {
	h.add(uint64(len(s)))
	for len(s) >= 8 {
		h.add(uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56)
		s = s[8:]
	}
	rest := uint64(0)
	for i := range len(s) {
		rest = rest<<8 | uint64(s[i])
	}
	h.add(rest)
}

func hashNothing(*hasher, unsafe.Pointer)     {}
func hash8(h *hasher, at unsafe.Pointer)      { h.add(uint64(*(*uint8)(at))) }
func hash16(h *hasher, at unsafe.Pointer)     { h.add(uint64(*(*uint16)(at))) }
func hash32(h *hasher, at unsafe.Pointer)     { h.add(uint64(*(*uint32)(at))) }
func hash64(h *hasher, at unsafe.Pointer)     { h.add(*(*uint64)(at)) }
func hashString(h *hasher, at unsafe.Pointer) { h.addString(*(*string)(at)) }

func hashTime(h *hasher, at unsafe.Pointer) {
	t := *(*time.Time)(at)
	switch d := t.Sub(h.now); {
	case t.IsZero():
		h.add(math.MaxUint64)
	case d < -h.age:
		h.add(math.MaxUint64 - 1)
	default:
		h.add(uint64(d))
	}
}

func hashError(h *hasher, at unsafe.Pointer) {
	if err := *(*error)(at); err == nil {
		h.add(0)
	} else {
		h.addString(err.Error())
	}
}

func hashStruct(parts []part) hashFunc {
	return func(h *hasher, at unsafe.Pointer) {
		for _, f := range parts {
			f.plan.hash(h, unsafe.Add(at, f.offset))
		}
	}
}

// hashWhile hashes a field while another one of its struct is set.
func hashWhile(field, flag uintptr, e *plan) hashFunc {
	return func(h *hasher, at unsafe.Pointer) {
		if *(*bool)(unsafe.Add(at, int(flag)-int(field))) {
			e.hash(h, at)
		}
	}
}

func hashPointer(e *plan) hashFunc {
	return func(h *hasher, at unsafe.Pointer) {
		p := *(*unsafe.Pointer)(at)
		if p == nil {
			h.add(0)
			return
		}
		a := address{p, e}
		if a != h.last {
			id, ok := h.ids[a]
			if !ok {
				h.ids[a] = uint64(len(h.ids))
				h.add(1)
				e.hash(h, p)
				return
			}
			h.last, h.id = a, id
		}
		h.add(h.id + 2)
	}
}

func hashSlice(t reflect.Type, e *plan) hashFunc {
	size := t.Elem().Size()
	return func(h *hasher, at unsafe.Pointer) {
		s := (*header)(at)
		h.add(uint64(s.len))
		for i := range s.len {
			e.hash(h, unsafe.Add(s.data, uintptr(i)*size))
		}
	}
}

func hashArray(t reflect.Type, e *plan) hashFunc {
	n, size := t.Len(), t.Elem().Size()
	return func(h *hasher, at unsafe.Pointer) {
		for i := range n {
			e.hash(h, unsafe.Add(at, uintptr(i)*size))
		}
	}
}

func hashMap(t reflect.Type, k, e *plan, order func(a, b any) int) hashFunc {
	kt, et := t.Key(), t.Elem()
	return func(h *hasher, at unsafe.Pointer) {
		if *(*unsafe.Pointer)(at) == nil {
			h.add(0)
			return
		}
		m := reflect.NewAt(t, at).Elem()
		n := m.Len()
		h.add(uint64(n))
		if n == 0 {
			return
		}
		keys := m.MapKeys()
		if n > 1 {
			sortKeys(kt, keys, order)
		}
		key, val := reflect.New(kt), reflect.New(et)
		for _, v := range keys {
			key.Elem().Set(v)
			val.Elem().Set(m.MapIndex(v))
			k.hash(h, key.UnsafePointer())
			e.hash(h, val.UnsafePointer())
		}
	}
}

func sortKeys(t reflect.Type, keys []reflect.Value, order func(a, b any) int) {
	switch t.Kind() { //nolint:exhaustive // the others are sorted by their text
	case reflect.String:
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.Int(), b.Int()) })
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.Uint(), b.Uint()) })
	case reflect.Pointer, reflect.Interface:
		if order == nil {
			panic("waybill/statespace: a map has several keys of type " + t.String() + ": give Rules an Order")
		}
		slices.SortFunc(keys, func(a, b reflect.Value) int { return order(open(a), open(b)) })
	default:
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
}

// open returns the value of a key, also one of an unexported field.
func open(v reflect.Value) any {
	n := reflect.New(v.Type())
	n.Elem().Set(v)
	return n.Elem().Interface()
}

func hashInterface(t reflect.Type, p *planner) hashFunc {
	return func(h *hasher, at unsafe.Pointer) {
		s := reflect.NewAt(t, at).Elem()
		if s.IsNil() {
			h.add(0)
			return
		}
		v := s.Elem()
		h.addString(v.Type().String())
		from := reflect.New(v.Type())
		from.Elem().Set(v)
		p.dynamic(v.Type()).hash(h, from.UnsafePointer())
	}
}
