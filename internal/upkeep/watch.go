package upkeep

import (
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// Watch tells which members and partitions have come and gone since it was last asked. The zero value knows none. A
// Watch is not safe for concurrent use.
type Watch struct {
	members    map[core.Session]string
	partitions map[string][]core.Partition // by route
}

// Members returns the names of the members that have come and of those that have gone.
func (w *Watch) Members(now []core.Member) (met, gone []string) {
	names := make(map[core.Session]string, len(now))
	for i := range now {
		m := &now[i]
		if names[m.Session] = m.Name; !has(w.members, m.Session) {
			met = append(met, m.Name)
		}
	}
	for session, name := range w.members {
		if !has(names, session) {
			gone = append(gone, name)
		}
	}
	w.members = names
	slices.Sort(met)
	slices.Sort(gone)
	return met, gone
}

func has(names map[core.Session]string, s core.Session) bool { _, ok := names[s]; return ok }

// Partitions returns the slots of the partitions of a route that the member has got and of those that it has no longer,
// as "0-7". It keeps now.
func (w *Watch) Partitions(route string, now []core.Partition) (taken, given []string) {
	was := w.partitions[route]
	for _, u := range now {
		if !slices.Contains(was, u) {
			taken = append(taken, slots(u))
		}
	}
	for _, u := range was {
		if !slices.Contains(now, u) {
			given = append(given, slots(u))
		}
	}
	if w.partitions == nil {
		w.partitions = map[string][]core.Partition{}
	}
	w.partitions[route] = now
	return taken, given
}

func slots(u core.Partition) string { return fmt.Sprintf("%d-%d", u.From, u.To-1) }
