package postgres

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// floorWorld is a database with notices, as far as a floor can tell, and two processes that look for them. In its
// histories numbers are committed out of order and rolled back, transactions of other databases run for long, calls and
// their answers overtake each other, the server crashes, is restored from a backup, and processes begin anew.
type floorWorld struct {
	rnd    *rand.Rand
	floors [2]*noticeFloor // of two processes, each with several readers
	now    floorState
	backup floorState
	lives  int
	calls  []*floorCall
	tells  bool // a failed history is told when it runs again
	log    []string
	rose   int // how often a look began above 0
	failed bool
}

// floorState is what a backup of the database has.
type floorState struct {
	epoch, nextID, last int64
	visible             map[int64]bool    // notices that are there, by number
	running             map[int64][]int64 // the numbers that a transaction has drawn, by its id
}

func (s *floorState) copy() floorState {
	c := *s
	c.visible, c.running = maps.Clone(s.visible), maps.Clone(s.running)
	return c
}

func (s *floorState) begin() int64 {
	s.nextID++
	s.running[s.nextID-1] = nil
	return s.nextID - 1
}

func (s *floorState) xmin() int64 {
	least := s.nextID
	for id := range s.running {
		least = min(least, id)
	}
	return least
}

// floorCall is a call under way: sent, then carried out by the database, then answered.
type floorCall struct {
	floor  *noticeFloor
	from   lookFrom
	writes bool // a renewal: its transaction has an id
	reads  bool // a Read, not a Heartbeat
	done   bool
	epoch  string
	drawn  drawn
	missed []int64 // the notices that were there, and that the look left out
}

func (w *floorWorld) note(format string, args ...any) {
	if w.tells {
		w.log = append(w.log, fmt.Sprintf(format, args...))
	}
}

// some returns one of the running transactions, 0 if there is none.
func (w *floorWorld) some() int64 {
	if len(w.now.running) == 0 {
		return 0
	}
	ids := slices.Sorted(maps.Keys(w.now.running))
	return ids[w.rnd.IntN(len(ids))]
}

// crash ends all transactions, and the connections with them; answers that are on their way may still arrive.
func (w *floorWorld) crash() {
	w.now.running = map[int64][]int64{}
	w.calls = slices.DeleteFunc(w.calls, func(c *floorCall) bool { return c.drawn.id != 0 && !c.done || c.done && w.rnd.IntN(2) == 0 })
}

// carryOut has the database answer a call.
func (w *floorWorld) carryOut(c *floorCall) {
	s := &w.now
	c.done, c.epoch = true, strconv.FormatInt(s.epoch, 10)
	c.drawn.lastNotice, c.drawn.xmin = s.last, s.xmin()
	delete(s.running, c.drawn.id)
	for _, n := range slices.Sorted(maps.Keys(s.visible)) {
		if n <= c.from.after {
			c.missed = append(c.missed, n)
		} else if c.drawn.notice == 0 {
			c.drawn.notice = n
		}
	}
}

// step does one thing at random.
func (w *floorWorld) step() {
	s := &w.now
	switch id := w.some(); w.rnd.IntN(20) {
	case 0:
		w.note("transaction %d begins", s.begin())
	case 1, 2:
		if id != 0 {
			s.last++
			s.running[id] = append(s.running[id], s.last)
			w.note("transaction %d draws number %d", id, s.last)
		}
	case 3, 4:
		if id != 0 {
			for _, n := range s.running[id] {
				s.visible[n] = true
			}
			w.note("transaction %d commits %v", id, s.running[id])
			delete(s.running, id)
		}
	case 5:
		delete(s.running, id)
		w.note("transaction %d is rolled back", id)
	case 6:
		clear(s.visible)
		w.note("all notices are deleted")
	case 7, 8, 9, 10:
		c := &floorCall{floor: w.floors[w.rnd.IntN(2)], writes: w.rnd.IntN(2) == 0, reads: w.rnd.IntN(3) == 0}
		c.writes, c.from = c.writes && !c.reads, c.floor.look()
		if w.calls = append(w.calls, c); c.from.after > 0 {
			w.rose++
		}
		w.note("a call is sent that looks behind %+v; writes: %t", c.from, c.writes)
	case 11, 12, 13, 14, 15, 16, 17, 18:
		if len(w.calls) > 0 {
			i := w.rnd.IntN(len(w.calls))
			w.take(i)
		}
	default:
		switch w.rnd.IntN(20) {
		case 0:
			w.backup = s.copy()
			w.note("a backup is made")
		case 1:
			w.crash()
			w.note("the server crashes")
		case 2:
			w.crash()
			w.lives++
			*s = w.backup.copy()
			s.epoch, s.running = int64(w.lives), map[int64][]int64{}
			w.note("the backup is restored")
		case 3:
			i := w.rnd.IntN(2)
			w.floors[i] = new(noticeFloor)
			w.note("process %d begins anew", i)
		}
	}
}

// take carries call i out, or takes in its answer.
func (w *floorWorld) take(i int) {
	c := w.calls[i]
	switch {
	case c.writes && c.drawn.id == 0:
		c.drawn.id = w.now.begin()
		w.note("the call behind %+v draws id %d", c.from, c.drawn.id)
		return
	case !c.done:
		w.carryOut(c)
		w.note("the call behind %+v is carried out: %+v", c.from, c.drawn)
		return
	}
	w.calls = slices.Delete(w.calls, i, i+1)
	var holds bool
	if c.reads {
		holds = c.floor.holds(c.from, c.epoch, c.drawn.lastNotice)
	} else {
		holds = c.floor.saw(c.from, c.epoch, &c.drawn)
	}
	w.note("the answer to the call behind %+v is taken in; now it is %+v", c.from, c.floor.look())
	if holds && len(c.missed) > 0 {
		w.note("a look behind %d left out the notices %d, and nothing says so", c.from.after, c.missed)
		w.failed = true
	}
}

// history runs one history until it fails, and tells it if asked.
func history(seed uint64, tells bool) *floorWorld {
	w := &floorWorld{rnd: rand.New(rand.NewPCG(seed, 1)), floors: [2]*noticeFloor{{}, {}}, tells: tells}
	w.now = floorState{nextID: 1, visible: map[int64]bool{}, running: map[int64][]int64{}}
	w.backup = w.now.copy()
	for range 600 {
		if w.step(); w.failed {
			break
		}
	}
	return w
}

// DB-28: in no history of transactions, crashes, restores and overtaking answers does a look leave out a notice.
func TestNoticeFloorMissesNone(t *testing.T) {
	t.Parallel()
	rose := 0
	for seed := range uint64(3_000) {
		w := history(seed, false)
		if rose += w.rose; w.failed {
			t.Fatalf("history %d:\n%s", seed, strings.Join(history(seed, true).log, "\n"))
		}
	}
	if t.Logf("%d looks began above 0", rose); rose < 10_000 {
		t.Errorf("%d looks began above 0: the histories raise no floor", rose)
	}
}

// DB-28: a database that was restored without another epoch shows numbers again. A floor above the last one is void.
func TestNoticeFloorGoesBack(t *testing.T) {
	t.Parallel()
	f := &noticeFloor{}
	for id := range int64(3) {
		f.saw(f.look(), "1", &drawn{lastNotice: 9, id: id + 5, xmin: id + 5})
	}
	from := f.look()
	if from.after != 9 {
		t.Fatalf("the floor is %d, want 9", from.after)
	}
	if f.holds(from, "1", 8) || f.look().after != 0 {
		t.Errorf("an answer says that number 8 was the last, and the floor is %d", f.look().after)
	}
	if !f.holds(f.look(), "1", 8) {
		t.Error("a look from the beginning lacks notices")
	}
}
