package main

// scheduled are faults of recurring jobs.
func scheduled() []mutant {
	const runner = "recurring/runner.go"
	return group{pkg: "./recurring"}.of(
		mutant{id: "recurring-zone", fault: "a tick is marked by the time of its zone, so another zone stages it again", file: runner, old: "ID: tick.UTC().Format(time.RFC3339)", new: "ID: tick.Format(time.RFC3339)", tests: "^TestZonesShareTicks$"},
		mutant{id: "recurring-late", fault: "a tick that fails sleeps past the end of Late", file: runner, old: "wait = min(wait, max(time.Until(tick.Add(j.Late))/2, retries.Base))", new: "wait = min(wait, j.Late)", tests: "^TestOutageUntilLate$"},
	)
}
