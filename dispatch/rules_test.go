package dispatch

import (
	"flag"
	"testing"
	"time"
)

var ruleSeeds = flag.Int("rules.seeds", 3, "how many worlds TestRules has for each rule; internal/mutants breaks the rules, and needs some hundred")

// rules are what keeps the promises, and the worlds that need each. A world whose store breaks a promise of its own
// (broken) shows that the model would notice.
var rules = []struct {
	name   string
	make   func(c *simConfig)
	broken string
}{
	// a new partition's waiting records come first
	{"LoadHeld", func(c *simConfig) { c.refuse, c.join = true, true }, ""},
	// a record that another session holds is not handed out
	{"ForeignHold", func(c *simConfig) { c.slow, c.join = true, true }, "NoHolds"},
	// it is read again
	{"Again", func(c *simConfig) { c.slow, c.join = true, true }, ""},
	// a partition's hint is below all that may still appear
	{"Hint", func(c *simConfig) { c.join, c.long = true, true }, ""},
	// the transactions that may be running go up to an id drawn after the snapshot
	{"Upper", func(c *simConfig) { c.long = true }, "OneSnap"},
	// a page of a key behind a walk is discarded
	{"HazardKeys", func(c *simConfig) { c.refuse, c.long = true, true }, "KeySnap"},
	// keyed records behind a walk are read by key
	{"PassHazard", func(c *simConfig) { c.long = true }, ""},
	// a record that was settled after a read was sent is not taken from the read
	{"Recent", func(*simConfig) {}, ""},
	// a key goes on when the end of a record is stored
	{"Unstored", func(c *simConfig) { c.refuse, c.unstored = true, true }, ""},
	// a retry whose answer was lost is said again
	{"DueRepeat", func(c *simConfig) { c.refuse, c.loseAnswers = true, true }, "DueRepeat"},
	// a locked record blocks its key
	{"TakeLocked", func(c *simConfig) { c.cancel = true }, ""},
	{"Control", func(c *simConfig) { c.cancel, c.refuse, c.redrive = true, true, true }, ""},
	{"Lower", func(c *simConfig) { // a hint is lowered before a notice is deleted
		c.refuse, c.block, c.owner, c.join, c.requeue, c.noSweeps = true, true, true, true, true, true
	}, ""},
	// a database that went back ends the session
	{"Restore", func(c *simConfig) { c.restore = true }, ""},
	{"SettleID", func(c *simConfig) { c.restore, c.freeze, c.loseAnswers = true, true, true }, "SettleID"},
	// a partition with another owner is dropped
	{"PartitionFence", func(c *simConfig) { c.restore, c.join = true, true }, ""},
	// a late member removes no other
	{"Gapped", func(c *simConfig) { c.blackout = true }, ""},
	// nothing is handed out after the deadline
	{"Deadline", func(c *simConfig) { c.freeze = true }, ""},
}

func ruleConfig(seed uint64, make func(c *simConfig)) simConfig {
	c := simConfig{
		seed: seed, members: 2 + int(seed%2), keys: 4, batch: 2 + int(seed%4), lease: time.Second, run: 4 * time.Second, settle: 12 * time.Second, routes: 1, depth: 4,
	}
	make(&c)
	return c
}

// TestRules keeps every promise in the worlds that need each rule, and finds a history in which a store breaks one.
// TE-09.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, r := range rules[:len(rules)/modelled] {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*ruleSeeds) {
				s := newSim(ruleConfig(10_000+seed, r.make))
				s.run()
				if rep := s.report(); rep != "" {
					t.Fatal(rep)
				}
			}
			for seed := uint64(0); r.broken != ""; seed++ {
				c := ruleConfig(10_000+seed, r.make)
				c.broken = r.broken
				s := newSim(c)
				if s.run(); len(s.wrong) > 0 {
					return
				}
				if seed == 200 {
					t.Fatalf("no history shows that the store breaks %s: is the model blind?", r.broken)
				}
			}
		})
	}
}
