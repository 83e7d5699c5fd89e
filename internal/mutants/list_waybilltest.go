package main

// tested are faults of the packages for tests of applications.
func tested() []mutant {
	const drain = "waybilltest/drain.go"
	simulation := group{pkg: "./waybilltest"}.of(
		mutant{id: "simulate-order", fault: "the fault of a call follows from its place among the calls of other messages", file: "waybilltest/simulate.go", old: "c.Op + h.about(c.Arg)", new: "c.Op + h.about(nil)", tests: "^TestFaultsFollowMessages$"},
	)
	return append(simulation, group{pkg: "./waybilltest/sqltest"}.of(
		mutant{id: "sqltest-due-in", fault: "a scheduled message is said to have waited no longer than the clock moved for it", file: drain, old: "max(m.skew-stored.Age, 0)", new: "max(-stored.Age, 0)", tests: "^TestTimes$"},
		mutant{id: "sqltest-retry", fault: "a retry is said to have come at once", file: drain, old: "return &due.Retries[0], m.skew, nil", new: "return &due.Retries[0], 0, nil", tests: "^TestTimes$"},
		mutant{id: "sqltest-rollback", fault: "the transaction of a producer that failed is committed", file: "waybilltest/sqltest/sqltest.go", old: "if err := fn(e.tb.Context(), tx); err != nil {\n\t\treturn err", new: "if err := fn(e.tb.Context(), tx); err != nil {\n\t\treturn errors.Join(err, tx.Commit())", tests: "^TestRolledBackProducer$"},
	)...)
}
