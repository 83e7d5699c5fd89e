package dispatch

import (
	"os"
	"testing"
	"time"
)

var ruleNames = []struct {
	rule rule
	name string
}{
	{ruleLoadHeld, "LoadHeld"}, {ruleWatchFromZero, "WatchFromZero"}, {ruleUpper, "Upper"}, {ruleHazardKeys, "HazardKeys"}, {rulePassHazard, "PassHazard"},
	{ruleRecent, "Recent"}, {ruleForeignHold, "ForeignHold"}, {ruleRestore, "Restore"}, {ruleTakeLocked, "TakeLocked"}, {ruleControl, "Control"},
	{ruleTwoRetries, "TwoRetries"}, {ruleUnitFence, "UnitFence"}, {ruleLoadOut, "LoadOut"}, {ruleGapped, "Gapped"}, {ruleLimbo, "Limbo"},
	{ruleWatched, "Watched"}, {ruleAgain, "Again"}, {ruleDeadline, "Deadline"},
}

// TestExploreRules counts what histories find with each rule off: WAYBILL_DISPATCH_EXPLORE=300.
func TestExploreRules(t *testing.T) {
	n := envInt("WAYBILL_DISPATCH_EXPLORE", 0)
	if n == 0 {
		t.SkipNow()
	}
	only := os.Getenv("WAYBILL_DISPATCH_RULE")
	for _, r := range ruleNames {
		if only != "" && only != r.name {
			continue
		}
		found, first := map[string]int{}, -1
		began := time.Now()
		for i := range n {
			cfg := randomConfig(uint64(10_000 + i))
			cfg.off, cfg.poison = r.rule, false
			s := newSim(cfg)
			s.run()
			for what := range s.wrong {
				if found[what]++; first < 0 {
					first = 10_000 + i
				}
			}
		}
		t.Logf("%-14s %v first %d, %s", r.name, found, first, time.Since(began).Round(time.Second))
	}
}
