package suitetest

import "github.com/waybill-go/waybill/core"

// Concerns reports whether c makes the owner of r read it.
func Concerns(c *core.Notice, r *core.Record) bool {
	if c.Route != r.Route || c.Number == 0 {
		return false
	}
	switch c.Kind {
	case core.NoticeKey:
		return c.Slot == r.Slot && c.Key == r.Envelope.Key && c.Key != ""
	case core.NoticeRecord:
		return c.Slot == r.Slot && c.ID == r.ID && c.Seq == r.Seq
	case core.NoticeReread:
		return c.Seq <= r.Seq
	case core.NoticeDecide:
	}
	return false
}
