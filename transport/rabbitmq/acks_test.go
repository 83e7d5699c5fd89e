package rabbitmq

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	testpatience "github.com/waybill-go/waybill/internal/patience"
)

// brokerModel is what a broker does with the frames of one channel.
type brokerModel struct {
	unacked  map[uint64]bool
	acked    map[uint64]int
	requeued map[uint64]int
	frames   int
	unknown  bool // a tag that is not unacked: a real broker closes the channel
}

func (b *brokerModel) Ack(tag uint64, multiple bool) error {
	b.frames++
	if !b.unacked[tag] {
		b.unknown = true
		return errors.New("unknown delivery tag")
	}
	for t := range b.unacked {
		if t == tag || multiple && t < tag {
			delete(b.unacked, t)
			b.acked[t]++
		}
	}
	return nil
}

func (b *brokerModel) Nack(tag uint64, _, _ bool) error {
	b.frames++
	if !b.unacked[tag] {
		b.unknown = true
		return errors.New("unknown delivery tag")
	}
	delete(b.unacked, tag)
	b.requeued[tag]++
	return nil
}

// A batch is acknowledged whole, each once, and nothing that is not in it ever is, in every order in which deliveries
// are settled.
func TestMultipleAckTakesNothingElse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		broker := &brokerModel{unacked: map[uint64]bool{}, acked: map[uint64]int{}, requeued: map[uint64]int{}}
		// flush is an action
		a := acks{ch: broker, timer: time.NewTimer(time.Hour)}
		var held []uint64
		next := uint64(0)
		want := map[uint64]bool{} // what was asked to be acknowledged
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				// dropped with a cancelled consumer
				next += rapid.SampledFrom([]uint64{0, 0, 0, 1, 5}).Draw(t, "gap")
				for range rapid.IntRange(1, 30).Draw(t, "n") {
					next++
					broker.unacked[next] = true
					a.arrived(next, time.Now(), 1, new(waybill.Delivery))
					held = append(held, next)
				}
			},
			"batch": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing is held")
				}
				var tags []uint64
				if rapid.Bool().Draw(t, "prefix") {
					tags = slices.Clone(held[:rapid.IntRange(1, len(held)).Draw(t, "n")])
				} else {
					tags = rapid.SliceOfNDistinct(rapid.SampledFrom(held), 1, len(held), rapid.ID).Draw(t, "tags")
				}
				held = slices.DeleteFunc(held, func(tag uint64) bool { return slices.Contains(tags, tag) })
				for _, tag := range tags {
					want[tag] = true
				}
				if err := a.ackAll(tags); err != nil {
					t.Fatal(err)
				}
			},
			"one": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing is held")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "i")
				tag := held[i]
				held = slices.Delete(held, i, i+1)
				if rapid.Bool().Draw(t, "requeue") {
					if err := a.requeue(tag); err != nil {
						t.Fatal(err)
					}
					return
				}
				want[tag] = true
				if err := a.ack(tag); err != nil {
					t.Fatal(err)
				}
			},
			"flush": func(*rapid.T) { a.flush() },
			"": func(t *rapid.T) {
				if broker.unknown {
					t.Fatal("a tag was settled twice")
				}
				if got := a.bytes.Load(); got != int64(len(held)) {
					t.Fatalf("bodies of %d bytes are held, want %d", got, len(held))
				}
				late := slices.Clone(a.waiting)
				slices.Sort(late)
				if len(slices.Compact(late)) != len(a.waiting) {
					t.Fatalf("a tag waits twice: %v", late)
				}
				for tag, n := range broker.acked {
					if !want[tag] || n != 1 {
						t.Fatalf("tag %d was acknowledged %d times, wanted %t", tag, n, want[tag])
					}
				}
				if len(broker.acked)+len(late) != len(want) || len(broker.unacked) != len(held)+len(late) {
					t.Fatalf("%d acknowledged and %d wait, want %d; %d open, want %d", len(broker.acked), len(late), len(want),
						len(broker.unacked), len(held))
				}
			},
		})
	})
}

func heldBy(a *acks, broker *brokerModel, n uint64) (tags []uint64) {
	for tag := uint64(1); tag <= n; tag++ {
		broker.unacked[tag] = true
		a.arrived(tag, time.Now(), 1, new(waybill.Delivery))
		tags = append(tags, tag)
	}
	return tags
}

// A batch of everything that is held takes one frame.
func TestMultipleAckIsOneFrame(t *testing.T) {
	t.Parallel()
	broker := &brokerModel{unacked: map[uint64]bool{}, acked: map[uint64]int{}, requeued: map[uint64]int{}}
	a := acks{ch: broker}
	tags := heldBy(&a, broker, 100)
	if err := a.ackAll(tags); err != nil || broker.frames != 1 || len(broker.acked) != 100 {
		t.Errorf("%d frames for %d acknowledgements: %v", broker.frames, len(broker.acked), err)
	}
}

// Of two batches at a time the later one, if it ends first, waits for the earlier one, and both take one frame. It does
// not wait for ever.
func TestMultipleAckWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		testpatience.BudgetOf(t)
		broker := &brokerModel{unacked: map[uint64]bool{}, acked: map[uint64]int{}, requeued: map[uint64]int{}}
		a := acks{ch: broker}
		tags := heldBy(&a, broker, 300)
		if err := a.ackAll(tags[100:200]); err != nil || broker.frames != 0 {
			t.Fatalf("%d frames: %v", broker.frames, err)
		}
		if err := a.ackAll(tags[:100]); err != nil || broker.frames != 1 || len(broker.acked) != 200 {
			t.Fatalf("%d frames for %d acknowledgements: %v", broker.frames, len(broker.acked), err)
		}
		if err := a.ackAll(tags[201:300]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxWait)
		synctest.Wait()
		if len(broker.acked) != 299 || len(broker.unacked) != 1 {
			t.Fatalf("%d acknowledged, %d open", len(broker.acked), len(broker.unacked))
		}
	})
}

// CO-03: acknowledgements that are held back leave a moment in which all that may be sent has been sent. They go out
// after it, or after a tenth of a second without it, and are not held back again at once.
func TestAcknowledgementsAreHeldBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		testpatience.BudgetOf(t)
		broker := &brokerModel{unacked: map[uint64]bool{}, acked: map[uint64]int{}, requeued: map[uint64]int{}}
		a := newAcks(broker)
		arrive := func(tag uint64) {
			broker.unacked[tag] = true
			a.arrived(tag, time.Now(), 1, new(waybill.Delivery))
			if err := a.ackAll([]uint64{tag}); err != nil {
				t.Error(err)
			}
		}
		open := func() int { // a timer sends under the same lock
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(broker.unacked)
		}
		moment := func(n int) (yes bool) {
			a.ifSent(1, n, func() { yes = true })
			return yes
		}
		arrive(1)
		a.holdBack()
		arrive(2)
		arrive(3)
		if broker.frames != 1 || !moment(2) {
			t.Errorf("%d frames were sent, want that before they were held back", broker.frames)
		}
		a.goOn(time.Time{})
		if broker.frames != 2 || open() != 0 {
			t.Errorf("%d frames were sent, and %d are unacknowledged", broker.frames, open())
		}
		a.holdBack()
		arrive(4)
		if open() != 1 {
			t.Error("they were not held back a second time")
		}
		time.Sleep(holdBackFor) // virtual time
		synctest.Wait()
		if open() != 0 {
			t.Error("they were held back for longer")
		}
		a.holdBack()
		arrive(5)
		if open() != 0 {
			t.Error("they were held back again at once")
		}
		time.Sleep(holdBackAgain) // virtual time
		a.holdBack()
		arrive(6)
		if open() != 1 {
			t.Error("they were not held back again")
		}
		a.goOn(time.Time{})
	})
}
