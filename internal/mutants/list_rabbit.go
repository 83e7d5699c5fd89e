package main

// rabbit are faults of the RabbitMQ transport.
func rabbit() []mutant {
	const acks, decode = "transport/rabbitmq/acks.go", "transport/rabbitmq/decode.go"
	const publish, batch, publisher, copies, settle, receiver, walk = "transport/rabbitmq/publish.go", "transport/rabbitmq/batch.go", "transport/rabbitmq/publisher.go", "transport/rabbitmq/copies.go", "transport/rabbitmq/settle.go", "transport/rabbitmq/receiver.go", "transport/rabbitmq/parkedwalk.go"
	const pkg = "./transport/rabbitmq"
	offline := append(group{pkg: "./transport/rabbitmq/topology"}.of(
		mutant{id: "rabbit-gc-statistics", fault: "a queue without statistics counts as empty, and is deleted", file: "transport/rabbitmq/topology/gc.go", old: "case live.Messages == nil || live.Consumers == nil:\n\t\treturn withoutStatistics(queue)", new: "case live.Messages == nil || live.Consumers == nil:\n\t\treturn nil", tests: "^TestDeleteUnusedQueue$"},
		mutant{id: "rabbit-gc-delay-statistics", fault: "a delay queue without statistics counts as empty, and is deleted", file: "transport/rabbitmq/topology/unused.go", old: "return 0, withoutStatistics(queue)", new: "return 0, nil", tests: "^TestDeleteUnusedDelayWithoutStatistics$"},
	), group{pkg: pkg}.of(
		mutant{id: "rabbit-multiple", fault: "one frame acknowledges what is not done", file: acks, old: "n, _ := slices.BinarySearch(tags, a.unacked.base)\n\treturn n", new: "return len(tags)", tests: "^TestMultipleAckTakesNothingElse$"},
		mutant{id: "rabbit-flush", fault: "acknowledgements that wait are never sent", file: acks, old: "a.timer = time.AfterFunc(maxWait, func() { a.flush() })", new: "a.timer = time.AfterFunc(maxWait, func() {})", tests: "^TestMultipleAckWaits$"},
		mutant{id: "rabbit-foreign-attempt", fault: "another system's header counts attempts", file: decode, old: "n > 1 && fromUs {", new: "n > 1 {", tests: "^TestDecode$"},
		mutant{id: "rabbit-id-conflict", fault: "two ids of a message are no problem", file: decode, old: "d.MessageId != \"\" && e.ID != \"\" && d.MessageId != e.ID", new: "d.MessageId == \"\" && e.ID != \"\" && d.MessageId != e.ID", tests: "^TestDecode$"},
		mutant{id: "rabbit-behind", fault: "a message counts as published before a failed one of its key", file: publish, old: "results[i] = errBehind\n\t\t\t}", new: "results[i] = nil\n\t\t\t}", tests: "^TestConfirmedBehindAFailedOne$"},
		mutant{id: "rabbit-acquired", fault: "requeues of a newer broker count as crashes", file: decode, old: "case acquired, !d.Redelivered:", new: "case acquired && d == nil, !d.Redelivered:", tests: "^TestDecode$"},
		mutant{id: "rabbit-stale-count", fault: "a count that another queue has left counts", file: decode, old: "case known && d.Redelivered:", new: "case known:", tests: "^TestDecode$"},
		mutant{id: "rabbit-carried", fault: "the count from before a copy is lost", file: decode, old: "carried += max(number(counted), 0)", new: "carried = max(number(counted), 0)", tests: "^TestDecode$"},
		mutant{id: "rabbit-return-nack", fault: "a nack leaves its return for ever", file: batch, old: "b.pc.takeReturn(f)\n\tb.suspect = true", new: "b.suspect = true", tests: "^TestReturnBeforeANack$"},
	)...)
	return append(offline, group{pkg: pkg, server: true}.of(
		mutant{id: "rabbit-bytes", fault: "bytes in hand are never given back", file: acks, old: "a.bytes.Add(-a.unacked.remove(tag))", new: "a.bytes.Add(0 * a.unacked.remove(tag))", tests: "^TestPrefetchBytes$"},
		mutant{id: "rabbit-reject", fault: "a message for the dead-letter exchange is requeued", file: acks, old: "return a.ch.Nack(tag, false, false)", new: "return a.ch.Nack(tag, false, true)", tests: "^TestRefusedCopyIsParkedByTheBroker$"},
		mutant{id: "rabbit-mandatory", fault: "an unroutable message is confirmed", file: batch, old: "PublishWithDeferredConfirm(exchange, key, true, false, p)", new: "PublishWithDeferredConfirm(exchange, key, false, false, p)", tests: "^TestPublishReceiveSettle$"},
		mutant{id: "rabbit-nacked", fault: "a message that a queue refused counts as published", file: batch, old: "b.results[f.index] = &waybill.Error{\n\t\tOp: \"waybill/rabbitmq: publish\", Class: waybill.ClassOutage, TopicOnly: true,\n\t\tErr: errNacked,\n\t}", new: "_ = errNacked", tests: "^TestFullQueue$"},
		mutant{id: "rabbit-topic-only", fault: "a full queue pauses all topics", file: batch, old: "Class: waybill.ClassOutage, TopicOnly: true,\n\t\tErr: errNacked", new: "Class: waybill.ClassOutage,\n\t\tErr: errNacked", tests: "^TestFullQueue$"},
		mutant{id: "rabbit-suspects", fault: "one message that closes the channel fails all that were in flight", file: publisher, old: "if !closedByMessage(run.cause) {\n\t\t\tfail(results, suspects, outage", new: "if suspects != nil || !closedByMessage(run.cause) {\n\t\t\tfail(results, suspects, outage", tests: "^TestOwnBroker$/^left_as_it_is$/^suspects$"},
		mutant{id: "rabbit-too-large", fault: "a body that is too large is sent", file: publish, old: "if size := e.Size(); size > b.maxBody {", new: "if size := e.Size(); size > b.maxBody+1<<30 {", tests: "^TestConformance$/^quorum$/^publish-unsendable$"},
		mutant{id: "rabbit-retry-attempt", fault: "a retry counts no attempt", file: copies, old: "setAttempt(p.Headers, h.attempt+1)", new: "setAttempt(p.Headers, h.attempt)", tests: "^TestRetryGoesToOneQueue$"},
		mutant{id: "rabbit-early-attempt", fault: "a retry that came early counts an attempt", file: copies, old: "setAttempt(p.Headers, h.attempt)\n\t\tif e, ok := h.raw.Headers[headerError]; ok {\n\t\t\tp.Headers[headerError] = e\n\t\t}\n\t} else {", new: "setAttempt(p.Headers, h.attempt+1)\n\t} else {", tests: "^TestConformance$/^quorum$/^retry-of-any-length$"},
		mutant{id: "rabbit-early-late", fault: "a retry that came early counts an attempt if its time comes before its settle", file: copies, old: "h.notBefore.After(now) || h.early && a.Err == \"\" {", new: "h.notBefore.After(now) {", tests: "^TestEarlyUntilItIsSettled$"},
		mutant{id: "rabbit-due", fault: "a retry longer than the longest delay comes early", file: copies, old: "p.Headers[headerDue] = now.Add(a.Delay).UnixMilli()", new: "_ = headerDue", tests: "^TestConformance$/^quorum$/^retry-of-any-length$"},
		mutant{id: "rabbit-remaining", fault: "a retry's time begins anew", file: copies, old: "table[prefixCE+core.AttrExpires] = expires.UTC().Format(time.RFC3339Nano)", new: "_ = expires", tests: "^TestCopiesKeepEverything$"},
		mutant{id: "rabbit-parked-queue", fault: "a parked message comes again", file: copies, old: "return copyToSend{slot: slot, exchange: r.dlx, key: r.queue, p: p}", new: "return copyToSend{slot: slot, exchange: \"\", key: r.queue, p: p}", tests: "^TestReplayedOnTheWire$"},
		mutant{id: "rabbit-refresh-ack", fault: "a parked message is removed although its copy failed", file: walk, old: "return results[0] == nil && w.remove(ctx, raw.DeliveryTag) == nil", new: "return w.remove(ctx, raw.DeliveryTag) == nil", tests: "^TestFailedRefreshKeepsTheMessage$"},
		mutant{id: "rabbit-settled-twice", fault: "a delivery can be settled twice", file: settle, old: "case !h.settled.CompareAndSwap(false, true):", new: "case h == nil:", tests: "^TestStaleDelivery$"},
		mutant{id: "rabbit-ready-order", fault: "in order: released messages come behind those that were pushed", file: settle, old: "s.ready = slices.Insert(s.ready, at, &next.delivery)", new: "s.ready = append(s.ready, &next.delivery)\n\t\t\t_ = at", tests: "^TestInOrderGiveBackComesFirst$"},
		mutant{id: "rabbit-not-yet", fault: "a queue that another connection is still making is no reason to ask again", file: "transport/rabbitmq/session.go", old: "!refused(err, amqp.InternalError) ||", new: "err != nil || s != nil ||", tests: "^TestConsumersStartTogether$"},
		mutant{id: "rabbit-secret", fault: "an open connection keeps the token that it was opened with", file: "transport/rabbitmq/credentials.go", old: "return c.UpdateSecret(fresh.Password, \"it expires\")", new: "return nil", tests: "^TestOwnBroker$/^left_as_it_is$/^OAuth_2$"},
		mutant{id: "rabbit-life", fault: "the time of a retried message begins anew", file: copies, old: "p.Expiration = remaining(h.expires, now)\n\tif checkHeaderFrame", new: "p.Expiration = h.raw.Expiration\n\tif checkHeaderFrame", tests: "^TestRetriedOnTheWire$"},
		mutant{id: "rabbit-expires-far", fault: "the time of a message that expires in centuries overflows", file: "transport/rabbitmq/wire.go", old: "if left > maxExpiration*time.Millisecond {", new: "if left > maxExpiration*time.Millisecond && left < math.MaxInt64 {", tests: "^TestConformance$/^quorum$/^expires-in-centuries$"},
		mutant{id: "rabbit-refused-copy", fault: "a copy that the broker never takes stops its queue for ever", file: "transport/rabbitmq/storecopies.go", old: "return h.refusals >= maxRefusals", new: "return h.refusals < 0", tests: "^TestCopyThatIsRefusedAlone$"},
		mutant{id: "rabbit-drop", fault: "a dropped message is parked", file: settle, old: "if r.sub.DropFailed {", new: "if r.sub.DropFailed && len(acks) == 0 {", tests: "^TestConformance$/^quorum$/^reject-unparked$"},
	)...)
}
