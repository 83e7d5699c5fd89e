package memory

import "sort"

// ordered is a sorted list without duplicates. What happens near its ends is cheap whatever its length.
type ordered[T any] struct {
	buf []T // buf[off:] are the elements
	off int
	cmp func(a, b T) int
}

func (o *ordered[T]) len() int   { return len(o.buf) - o.off }
func (o *ordered[T]) at(i int) T { return o.buf[o.off+i] }

// find returns where v is or would be.
func (o *ordered[T]) find(v T) (int, bool) {
	return sort.Find(o.len(), func(i int) int { return o.cmp(v, o.at(i)) })
}

func (o *ordered[T]) insert(v T) {
	i, found := o.find(v)
	if found {
		return
	}
	if o.off > 0 && i < o.len()/2 {
		o.off--
		copy(o.buf[o.off:], o.buf[o.off+1:o.off+1+i])
	} else {
		o.buf = append(o.buf, v)
		copy(o.buf[o.off+i+1:], o.buf[o.off+i:len(o.buf)-1])
	}
	o.buf[o.off+i] = v
}

func (o *ordered[T]) remove(v T) {
	i, found := o.find(v)
	if !found {
		return
	}
	var zero T
	if i < o.len()/2 {
		copy(o.buf[o.off+1:], o.buf[o.off:o.off+i])
		o.buf[o.off] = zero
		o.off++
	} else {
		copy(o.buf[o.off+i:], o.buf[o.off+i+1:])
		o.buf[len(o.buf)-1] = zero
		o.buf = o.buf[:len(o.buf)-1]
	}
	switch {
	case o.len() == 0:
		o.buf, o.off = nil, 0
	case o.off > 64 && o.off > len(o.buf)*3/4:
		o.buf, o.off = append([]T(nil), o.buf[o.off:]...), 0
	}
}
