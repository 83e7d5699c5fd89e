package memory

import (
	"cmp"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// maxControl bounds Page.Control.
const maxControl = 1000

// about returns a new control record about the key of r, or about r itself if it has none.
func (s *Store) about(r *record) *core.Control {
	s.told++
	c := &core.Control{
		Number: s.told, Kind: core.ControlKey, Route: r.route.name, Slot: r.slot, Key: r.env.Key, ID: r.env.ID, Seq: r.seq,
	}
	if r.env.Key == "" {
		c.Kind = core.ControlRecord
	}
	return c
}

// tell makes a control record visible.
func (s *Store) tell(c *core.Control) {
	i, _ := slices.BinarySearchFunc(s.control, c.Number, byNumber)
	s.control = slices.Insert(s.control, i, c)
	s.news(s.route(c.Route))
}

// tellOwner tells the owner of r, now or later, that a command has changed r. A route that was never served has no
// units, and nobody remembers its records.
func (s *Store) tellOwner(r *record) {
	if len(r.route.units) > 0 {
		s.tell(s.about(r))
	}
}

func byNumber(c *core.Control, number int64) int { return cmp.Compare(c.Number, number) }

// controls returns the control records of parts, by number.
func (s *Store) controls(parts []core.Part) (out []core.Control) {
	for _, c := range s.control {
		if len(out) == maxControl {
			break
		}
		if slices.ContainsFunc(parts, func(p core.Part) bool {
			return p.Route == c.Route && (p.Slots.Has(c.Slot) || c.Kind == core.ControlFrom && p.Slots != 0)
		}) {
			out = append(out, *c)
		}
	}
	return out
}

// heeded deletes a control record, if it is still the one that was read.
func (s *Store) heeded(number int64, ref core.Ref) {
	i, found := slices.BinarySearchFunc(s.control, number, byNumber)
	if !found {
		return
	}
	if c := s.control[i]; c.Route == ref.Route && c.Seq == ref.Seq && c.ID == ref.ID {
		s.control = slices.Delete(s.control, i, i+1)
	}
}
