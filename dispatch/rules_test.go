package dispatch

import (
	"testing"
	"time"
)

// rules are what keeps the promises, and how a history is made that needs each.
var rules = []struct {
	name string
	off  rule
	make func(c *simConfig)
}{
	{"LoadHeld", ruleLoadHeld, func(c *simConfig) { c.refuse, c.join = true, true }},
	{"ForeignHold", ruleForeignHold, func(c *simConfig) { c.slow, c.join = true, true }},
	{"NoHolds", 0, func(c *simConfig) { c.slow, c.join, c.broken = true, true, "NoHolds" }},
	{"Again", ruleAgain, func(c *simConfig) { c.slow, c.join = true, true }},
	{"Hint", ruleHint, func(c *simConfig) { c.join, c.long = true, true }},
	{"Upper", ruleUpper, func(c *simConfig) { c.long = true }},
	{"OneSnap", 0, func(c *simConfig) { c.broken = "OneSnap" }},
	{"KeySnap", 0, func(c *simConfig) { c.refuse, c.broken = true, "KeySnap" }},
	{"HazardKeys", ruleHazardKeys, func(c *simConfig) { c.refuse, c.long = true, true }},
	{"PassHazard", rulePassHazard, func(c *simConfig) { c.long = true }},
	{"Recent", ruleRecent, func(c *simConfig) {}},
	{"Unstored", ruleUnstored, func(c *simConfig) { c.refuse, c.unstored = true, true }},
	{"DueRepeat", 0, func(c *simConfig) { c.refuse, c.loseAnswers, c.broken = true, true, "DueRepeat" }},
	{"TakeLocked", ruleTakeLocked, func(c *simConfig) { c.cancel = true }},
	{"Control", ruleControl, func(c *simConfig) { c.cancel, c.refuse, c.redrive = true, true, true }},
	{"Lower", ruleLower, func(c *simConfig) {
		c.refuse, c.block, c.owner, c.join, c.requeue = true, true, true, true, true
		c.off |= ruleSweep
	}},
	{"Restore", ruleRestore, func(c *simConfig) { c.restore = true }},
	{"SettleID", 0, func(c *simConfig) { c.restore, c.freeze, c.loseAnswers, c.broken = true, true, true, "SettleID" }},
	{"SettleID and Restore", ruleRestore, func(c *simConfig) { c.restore, c.freeze, c.broken = true, true, "SettleID" }},
	{"UnitFence and Restore", ruleUnitFence | ruleRestore, func(c *simConfig) { c.restore, c.join = true, true }},
	{"Gapped", ruleGapped, func(c *simConfig) { c.blackout = true }},
	{"Deadline", ruleDeadline, func(c *simConfig) { c.freeze = true }},
}

func ruleConfig(seed uint64, off rule, make func(c *simConfig)) simConfig {
	c := simConfig{
		seed: seed, members: 2 + int(seed%2), keys: 4, batch: 2 + int(seed%4), lease: time.Second, run: 4 * time.Second, settle: 12 * time.Second, routes: 1, depth: 4, off: off,
	}
	make(&c)
	return c
}

// TestRules switches each rule off, and looks for a history in which that shows. With all rules on the same worlds
// are clean.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, r := range rules[:len(rules)/modelled] {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				c := ruleConfig(10_000+seed, 0, r.make)
				c.broken = ""
				s := newSim(c)
				s.run()
				if rep := s.report(); rep != "" {
					t.Fatalf("with all rules on: %s", rep)
				}
			}
			for seed := range uint64(200) {
				s := newSim(ruleConfig(10_000+seed, r.off, r.make))
				if s.run(); len(s.wrong) > 0 {
					return
				}
			}
			t.Error("no history needs the rule: is it one, or is the model blind?")
		})
	}
}
