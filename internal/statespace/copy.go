package statespace

// This file makes deep copies. A copy begins as an assignment; then each pointer, slice and map in it is replaced by a
// copy of its own. A value to which two pointers point is copied once.

import (
	"reflect"
	"unsafe"
)

// copyFunc makes the value at an address, which is an assigned copy, deep. It is nil for types that need nothing.
type copyFunc func(c *copier, at unsafe.Pointer)

// copier knows the values that have been copied already.
type copier struct {
	made map[address]unsafe.Pointer
	// the latest entry: arrays often hold the same pointer many times
	last   address
	lastTo unsafe.Pointer
}

// address is that of a value. The first field of a struct has the address of the struct.
type address struct {
	at unsafe.Pointer
	of *plan
}

// header is how a slice is laid out.
type header struct {
	data     unsafe.Pointer
	len, cap int
}

// Copy returns a copy of w with all that it refers to.
func (m *Model[W]) Copy(w *W) *W {
	c := &copier{made: make(map[address]unsafe.Pointer, 256)}
	n := new(W)
	*n = *w
	c.made[address{unsafe.Pointer(w), m.root}] = unsafe.Pointer(n) //nolint:gosec // addresses are the business of this file
	m.root.deepen(c, unsafe.Pointer(n))                            //nolint:gosec // see above
	return n
}

func (pl *plan) deepen(c *copier, at unsafe.Pointer) {
	if pl.copy != nil {
		pl.copy(c, at)
	}
}

func copyStruct(deep []part) copyFunc {
	return func(c *copier, at unsafe.Pointer) {
		for i := range deep {
			deep[i].plan.copy(c, unsafe.Add(at, deep[i].offset))
		}
	}
}

func copyPointer(t reflect.Type, e *plan) copyFunc {
	et := t.Elem()
	return func(c *copier, at unsafe.Pointer) {
		p := (*unsafe.Pointer)(at)
		if *p == nil {
			return
		}
		a := address{*p, e}
		if a == c.last {
			*p = c.lastTo
			return
		}
		n, ok := c.made[a]
		if !ok {
			v := reflect.New(et)
			v.Elem().Set(reflect.NewAt(et, *p).Elem())
			n = v.UnsafePointer()
			c.made[a] = n
			e.deepen(c, n)
		}
		c.last, c.lastTo = a, n
		*p = n
	}
}

func copySlice(t reflect.Type, e *plan) copyFunc {
	size := t.Elem().Size()
	return func(c *copier, at unsafe.Pointer) {
		h := (*header)(at)
		if h.len == 0 {
			h.cap = 0 // an append must not write where the original does
			return
		}
		made := reflect.MakeSlice(t, h.len, h.len)
		reflect.Copy(made, reflect.NewAt(t, at).Elem())
		h.data, h.cap = made.UnsafePointer(), h.len
		if e.copy != nil {
			for i := range h.len {
				e.copy(c, unsafe.Add(h.data, uintptr(i)*size))
			}
		}
	}
}

func copyArray(t reflect.Type, e *plan) copyFunc {
	n, size := t.Len(), t.Elem().Size()
	return func(c *copier, at unsafe.Pointer) {
		for i := range n {
			e.deepen(c, unsafe.Add(at, uintptr(i)*size))
		}
	}
}

func copyMap(t reflect.Type, k, e *plan) copyFunc {
	kt, et := t.Key(), t.Elem()
	return func(c *copier, at unsafe.Pointer) {
		if *(*unsafe.Pointer)(at) == nil {
			return
		}
		m := reflect.NewAt(t, at).Elem()
		made := reflect.MakeMapWithSize(t, m.Len())
		if m.Len() > 0 {
			key, val := reflect.New(kt), reflect.New(et)
			for each := m.MapRange(); each.Next(); {
				key.Elem().SetIterKey(each)
				val.Elem().SetIterValue(each)
				k.deepen(c, key.UnsafePointer())
				e.deepen(c, val.UnsafePointer())
				made.SetMapIndex(key.Elem(), val.Elem())
			}
		}
		m.Set(made)
	}
}

func copyChan(t reflect.Type) copyFunc {
	return func(_ *copier, at unsafe.Pointer) {
		if *(*unsafe.Pointer)(at) != nil {
			v := reflect.NewAt(t, at).Elem()
			v.Set(reflect.MakeChan(t, v.Cap()))
		}
	}
}

func copyInterface(t reflect.Type, p *planner) copyFunc {
	return func(c *copier, at unsafe.Pointer) {
		i := reflect.NewAt(t, at).Elem()
		if i.IsNil() {
			return
		}
		made := reflect.New(i.Elem().Type())
		made.Elem().Set(i.Elem())
		p.dynamic(made.Type().Elem()).deepen(c, made.UnsafePointer())
		i.Set(made.Elem())
	}
}
