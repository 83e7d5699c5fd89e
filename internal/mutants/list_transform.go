package main

// transformed are faults of the steps that change bodies.
func transformed() []mutant {
	const sign = "transform/sign.go"
	const claim, encrypt, step = "transform/claimcheck.go", "transform/encrypt.go", "transform/step.go"
	return group{pkg: "./transform"}.of(
		mutant{id: "transform-blob", fault: "a blob with another content of the same size is accepted", file: claim, old: "case nameOf(body) != is.Blob:", new: "case body == nil:", tests: "^TestWhatCannotBeUndone$"},
		mutant{id: "transform-missing", fault: "a message that names a key which never was stops the others", file: step, old: "Class: waybill.ClassRejected, Reason: waybill.ReasonUndecodable, Err: err}", new: "Class: waybill.ClassOutage, Reason: waybill.ReasonUndecodable, Err: err}", tests: "^TestWhatCannotBeUndone$"},
		mutant{id: "transform-bound", fault: "an encrypted body opens with another message", file: encrypt, old: "e.Body[head:], bound(id, e))", new: "e.Body[head:], bound(id, &waybill.Envelope{}))", tests: "^TestFormat$"},
		mutant{id: "transform-fields", fault: "two fields of the additional data run together", file: encrypt, old: "data = binary.BigEndian.AppendUint32(data, uint32(len(f)))", new: "_ = binary.BigEndian", tests: "^TestBodyIsBoundToItsMessage$"},
		mutant{id: "transform-tenant", fault: "an encrypted body is not bound to its tenant", file: encrypt, old: "return fields(sealVersion, 0, keyID, codingList(e), e.ID, e.Source, e.Topic, e.Type, e.Key, e.Tenant)", new: "return fields(sealVersion, 0, keyID, codingList(e), e.ID, e.Source, e.Topic, e.Type, e.Key)", tests: "^TestBodyIsBoundToItsMessage$"},
		mutant{id: "transform-plain", fault: "the sender can switch encryption off", file: step, old: "if err := r.LeftOut(); err != nil {", new: "if err := r.LeftOut(); err != nil && len(codings) > 0 {", tests: "^TestPlainTextIsRefused$"},
		mutant{id: "transform-sign-time", fault: "a signature says nothing of the time", file: sign, old: "at = string(binary", new: "_ = string(binary", tests: "^TestSign$"},
		mutant{id: "transform-sign-source", fault: "the key of one service signs messages of another", file: sign, old: "return len(k.Sources) == 0 ||", new: "return source != \"\" ||", tests: "^TestSign$"},
		mutant{id: "transform-sign-mac", fault: "a signature is not compared", file: sign, old: "case key.Secret != nil && hmac.Equal(", new: "case key.Secret != nil || hmac.Equal(", tests: "^TestSign$"},
		mutant{id: "transform-sign-public", fault: "a signature of Ed25519 is not verified", file: sign, old: "case key.Secret == nil && ed25519.Verify(", new: "case key.Secret == nil || ed25519.Verify(", tests: "^TestSign$"},
	)
}
