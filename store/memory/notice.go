package memory

import (
	"cmp"
	"slices"

	"github.com/waybill-go/waybill/core"
)

const (
	// maxNotice bounds ReadResult.Notices.
	maxNotice = 1000
	// tellFrom is from how many records of a route without a key on a redrive tells the owners of the whole route
	// to read again, instead of those of each record. It is small, so that tests with this store meet it.
	tellFrom = 3
)

// command is a notice, and the slots whose owners have not carried it out.
type command struct {
	core.Notice
	slots core.Slots
}

// about returns a new notice about the key of r, or about r itself if it has none.
func (s *Store) about(r *record) *core.Notice {
	s.told++
	c := &core.Notice{
		Number: s.told, Kind: core.NoticeKey, Route: r.route.name, Slot: r.slot, Key: r.env.Key, ID: r.env.ID, Seq: r.seq,
	}
	if r.env.Key == "" {
		c.Kind = core.NoticeRecord
	}
	return c
}

// tell makes a notice visible.
func (s *Store) tell(c *core.Notice) {
	i, _ := slices.BinarySearchFunc(s.notice, c.Number, byNumber)
	slots := core.Slots(1) << c.Slot
	if c.Kind == core.NoticeReread {
		slots = core.AllSlots
	}
	s.notice = slices.Insert(s.notice, i, &command{*c, slots})
	s.news(s.route(c.Route))
}

// tellOwner tells the owner of r, now or later, that a command has changed r. No process remembers the records of a
// route that was never served.
func (s *Store) tellOwner(r *record) {
	if r.route.known() {
		s.tell(s.about(r))
	}
}

// tellOwners tells the owners of records without a key that a command has changed them: of each record, or of the whole
// route if there are many.
func (s *Store) tellOwners(records []*record) {
	byRoute := map[*route][]*record{}
	for _, r := range records {
		byRoute[r.route] = append(byRoute[r.route], r)
	}
	for _, name := range s.names() {
		rt := s.routes[name]
		rs := byRoute[rt]
		if len(rs) <= tellFrom {
			for _, r := range rs {
				s.tellOwner(r)
			}
			continue
		}
		if !rt.known() {
			continue
		}
		s.told++
		first := slices.MinFunc(rs, func(a, b *record) int { return cmp.Compare(a.seq, b.seq) })
		s.tell(&core.Notice{Number: s.told, Kind: core.NoticeReread, Route: name, Seq: first.seq})
	}
}

// known reports whether a member serves the route, or has served it.
func (rt *route) known() bool { return len(rt.partitions) > 0 || rt.kept.Term > 0 }

func byNumber(c *command, number int64) int { return cmp.Compare(c.Number, number) }

// notices returns the notices of parts behind a number, in order.
func (s *Store) notices(parts []core.RouteSlots, after int64) (out []core.Notice) {
	for _, c := range s.notice {
		if c.Number <= after {
			continue
		}
		if len(out) == maxNotice {
			break
		}
		if slices.ContainsFunc(parts, func(p core.RouteSlots) bool {
			return p.Route == c.Route && p.Slots&c.slots != 0
		}) {
			out = append(out, c.Notice)
		}
	}
	return out
}

// noticeDone deletes a notice, if it is still the one that was read. One about a whole route goes when the owners
// of all slots have carried it out.
func (s *Store) noticeDone(self core.Session, number int64, ref core.Ref) {
	i, found := slices.BinarySearchFunc(s.notice, number, byNumber)
	if !found {
		return
	}
	c := s.notice[i]
	if c.Route != ref.Route || c.Seq != ref.Seq || c.ID != ref.ID {
		return
	}
	if c.Kind == core.NoticeReread {
		c.slots &^= s.route(c.Route).owned(self)
	} else {
		c.slots = 0
	}
	if c.slots == 0 {
		s.notice = slices.Delete(s.notice, i, i+1)
	}
}
