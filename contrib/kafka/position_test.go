package kafka_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/waybill-go/waybill/contrib/kafka"
)

// CO-26: the fetched messages of a receiver are bounded in bytes, for any number of partitions.
func TestPartitionsShareBytes(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int32{1, 4, 5, 100, 1000} {
		if n, most := kafka.HeldBytes(partitions), 64<<20+int(partitions)<<10; n > most {
			t.Errorf("%d partitions hold %d bytes, want at most %d", partitions, n, most)
		}
	}
}

// A partition is handed out, settled, skipped, put back and moved to other receivers at random. Messages that are
// not done are handed out again after each move, with their counts, and no others.
func TestPositionModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		inOrder := seed%2 == 0 // as the bus; a retry log goes by time, and skips nothing
		p, err := kafka.Restored(0, "")
		if err != nil {
			t.Fatal(err)
		}
		const n = 800
		undone, out := map[int64]int{}, map[int64]bool{} // the counts of what is fetched and not done
		var fetched []int64                              // and not done
		next := int64(0)
		drop := func(o int64) {
			p.Done(o)
			delete(undone, o)
			delete(out, o)
			fetched = slices.DeleteFunc(fetched, func(x int64) bool { return x == o })
		}
		for next < n || len(undone) > 0 {
			switch k := r.IntN(100); {
			case k < 40 && next < n:
				for range 1 + r.IntN(30) {
					if r.IntN(10) == 0 {
						next++ // a marker of a transaction, or a compacted record
					}
					if !p.Fetch(next) {
						t.Fatalf("seed %d: message %d was not fetched before, and is done", seed, next)
					}
					undone[next], fetched = 0, append(fetched, next)
					next++
				}
			case k < 97 && len(fetched) > 0:
				o := fetched[min(r.IntN(len(fetched)), 40)]
				if first := slices.IndexFunc(fetched, func(o int64) bool { return !out[o] }); inOrder && !out[o] {
					o = fetched[first]
				}
				switch {
				case !out[o] && inOrder && r.IntN(2) == 0 && undone[o] == 0:
					drop(o) // no binding fits
				case !out[o]:
					before, ok := p.HandOut(o)
					if before != undone[o] {
						t.Fatalf("seed %d: message %d was delivered %d times, the position says %d", seed, o, undone[o], before)
					}
					if ok {
						out[o], undone[o] = true, before+1
					}
				case r.IntN(5) == 0:
					p.PutBack(o)
					out[o], undone[o] = false, undone[o]-1
				default:
					drop(o)
				}
			case k >= 97:
				offset, metadata := p.Commit()
				if len(metadata) > kafka.MaxMetadata {
					t.Fatalf("seed %d: the metadata has %d bytes", seed, len(metadata))
				}
				if p, err = kafka.Restored(offset, metadata); err != nil {
					t.Fatal(err)
				}
				clear(out)
				var again []int64
				for o := p.Next(); o < next; o++ {
					if _, there := undone[o]; p.Fetch(o) {
						again = append(again, o)
						if !there && slices.Contains(fetched, o) {
							t.Fatalf("seed %d: message %d is done, and comes again", seed, o)
						}
						undone[o] += 0
					} else if there {
						t.Fatalf("seed %d: message %d is not done, and does not come again", seed, o)
					}
				}
				fetched = again
			}
		}
	}
}

// The metadata stays within the brokers' limit in the worst case: every second one of the deliveries is
// settled.
func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	for _, each := range []int64{1, 2, 3} { // each such message is for the queue, the others are skipped
		p, _ := kafka.Restored(1<<40, "")
		var out []int64
		for i := range int64(10_000) {
			o := 1<<40 + i
			p.Fetch(o)
			if i%each != 0 {
				p.Done(o)
				continue
			}
			if _, ok := p.HandOut(o); !ok {
				break // the queue waits
			}
			out = append(out, o)
		}
		if len(out) < 400 || len(out) > 2_000 {
			t.Errorf("%d messages are out at a time", len(out))
		}
		for i, o := range out {
			if i%2 == 0 {
				p.Done(o)
			}
		}
		if _, metadata := p.Commit(); len(metadata) > 4096 {
			t.Errorf("%d messages are out, and the metadata has %d bytes", len(out), len(metadata))
		}
	}
}

// Metadata that cannot be read is an error, and never a queue without messages. That of other programs is none.
func TestMetadataOfOthers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"w1:!", "w1:gICAgICAgICAgAE", "w2:AAAA", "w1:AAAAAAAA"} {
		if _, err := kafka.Restored(7, text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	for _, text := range []string{"", "NO_METADATA", "consumer-1-5f2c", "w"} {
		if p, err := kafka.Restored(7, text); err != nil || p.Next() != 7 || !p.Fetch(7) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzRestore gives restore any metadata. A state that was read is written again as it was.
func FuzzRestore(f *testing.F) {
	f.Add(int64(5), "w1:CgABAQ")
	f.Add(int64(0), "w1:")
	f.Fuzz(func(t *testing.T, offset int64, text string) {
		offset &= 1<<40 - 1
		p, err := kafka.Restored(offset, text)
		if err != nil {
			return
		}
		o, m := p.Commit()
		again, err := kafka.Restored(o, m)
		if err != nil || o < offset {
			t.Fatalf("%q came back as %d, %q: %v", text, o, m, err)
		}
		if o2, m2 := again.Commit(); o2 != o || m2 != m {
			t.Fatalf("%d, %q came back as %d, %q", o, m, o2, m2)
		}
	})
}
