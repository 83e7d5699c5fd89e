package main

// transformed are faults of the steps that change bodies.
func transformed() []mutant {
	const claim, encrypt = "transform/claimcheck.go", "transform/encrypt.go"
	return group{pkg: "./transform"}.of(
		mutant{id: "transform-blob", fault: "a blob with another content of the same size is accepted", file: claim, old: "case len(body) != is.Size || nameOf(body) != is.Blob:", new: "case len(body) != is.Size:", tests: "^TestWhatCannotBeUndone$"},
		mutant{id: "transform-last", fault: "an encrypted body without its last record is accepted", file: encrypt, old: "if isLast && mark != lastRecord || !isLast", new: "if !isLast", tests: "^TestRecordsAreComplete$"},
	)
}
