package sqs

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"sync"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
)

// SQS takes ten messages a request, and bounds their bytes. So a batch becomes several requests side by side. In a FIFO
// queue all entries of a group go through the same stream, one request after the other: requests side by side could
// pass each other.

// entry is one message to send to one queue.
type entry struct {
	slot  int
	w     wire
	delay int32  // seconds
	group string // FIFO only, as dedup
	dedup string
}

// send sends entries to the queue name, or to the topic of SNS with that ARN, in requests side by side, and calls fail
// for each that was not confirmed. Entries of one group go one after the other.
func (t *Transport) send(ctx context.Context, op, name string, entries []entry, fail func(*entry, error)) {
	if len(entries) == 0 {
		return
	}
	url, bound := "", maxTopicBytes
	if name != t.opts.TopicARN {
		var err error
		if url, err = t.url(ctx, op, name); err != nil {
			for i := range entries {
				fail(&entries[i], err)
			}
			return
		}
		bound = maxBytes
	}
	var wg sync.WaitGroup
	for _, stream := range t.streams(entries, bound) {
		wg.Go(func() {
			for _, part := range stream {
				t.sendPart(ctx, op, name, url, part, fail)
			}
		})
	}
	wg.Wait()
}

// streams splits entries into requests of at most bound bytes. Those of one stream are sent one after the other.
func (t *Transport) streams(entries []entry, bound int) [][][]entry {
	var streams [][][]entry
	if !t.opts.FIFO {
		for _, part := range requests(entries, bound) {
			streams = append(streams, [][]entry{part})
		}
		return streams
	}
	by := make([][]entry, min(t.opts.Requests, (len(entries)+maxEntries-1)/maxEntries))
	for _, e := range entries {
		h := fnv.New32a()
		_, _ = io.WriteString(h, e.group) // never fails
		i := int(h.Sum32() % uint32(len(by)))
		by[i] = append(by[i], e)
	}
	for _, stream := range by {
		if len(stream) > 0 {
			streams = append(streams, requests(stream, bound))
		}
	}
	return streams
}

// requests splits entries where the limits of a batch are.
func requests(entries []entry, bound int) (parts [][]entry) {
	start, size := 0, 0
	for i := range entries {
		n := entries[i].w.size()
		if i > start && (i-start == maxEntries || size+n > bound) {
			parts = append(parts, entries[start:i])
			start, size = i, 0
		}
		size += n
	}
	return append(parts, entries[start:])
}

// sendPart makes one request. If SQS refuses it as a whole because of one of its messages, they are sent one by one, so
// that only that one fails.
func (t *Transport) sendPart(ctx context.Context, op, name, url string, part []entry, fail func(*entry, error)) {
	failed, err := t.sendBatch(ctx, op, name, url, part)
	switch {
	case err != nil && len(part) > 1 && waybill.ClassOf(err) != waybill.ClassOutage:
		for i := range part {
			t.sendPart(ctx, op, name, url, part[i:i+1], fail)
		}
		return
	case err != nil:
		for i := range part {
			fail(&part[i], err)
		}
		return
	}
	for i, err := range failed {
		fail(&part[i], err)
	}
}

// sendBatch returns the errors of the entries that SQS did not take, by the place in part.
func (t *Transport) sendBatch(ctx context.Context, op, name, url string, part []entry) (map[int]error, error) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return nil, outage(op, context.Cause(ctx))
	}
	list := make([]types.SendMessageBatchRequestEntry, len(part))
	for i := range part {
		e := &part[i]
		list[i] = types.SendMessageBatchRequestEntry{
			Id: id(i), MessageBody: &e.w.body, MessageAttributes: e.w.attributes, DelaySeconds: e.delay,
		}
		if e.group != "" {
			list[i].MessageGroupId, list[i].MessageDeduplicationId = &e.group, &e.dedup
		}
	}
	limited, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	var out *awssqs.SendMessageBatchOutput
	var err error
	if name == t.opts.TopicARN {
		out, err = t.opts.SNS.PublishBatch(limited, name, list)
	} else {
		out, err = t.client.SendMessageBatch(limited, &awssqs.SendMessageBatchInput{QueueUrl: &url, Entries: list})
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // such as ErrClosed
		}
		e := callError(op, name, err)
		if errors.Is(e, waybill.ErrMisconfigured) {
			t.forget(name)
		}
		return nil, e
	}
	done := make(map[string]bool, len(part))
	for i := range out.Successful {
		done[value(out.Successful[i].Id)] = true
	}
	return unsettled(op, name, len(part), done, out.Failed), nil
}

// unsettled returns the errors of a batch of n: those that SQS reports, and an outage for each message that it does not
// mention.
func unsettled(op, name string, n int, done map[string]bool, failed []types.BatchResultErrorEntry) map[int]error {
	errs := map[int]error{}
	for i := range n {
		if done[*id(i)] {
			continue
		}
		errs[i] = outage(op, errNoResult)
		if j := slices.IndexFunc(failed, func(f types.BatchResultErrorEntry) bool { return value(f.Id) == *id(i) }); j >= 0 {
			errs[i] = entryError(op, name, &failed[j])
		}
	}
	return errs
}

var errNoResult = errors.New("the answer has no result for the message")

// ids are those of a batch's entries.
var ids = func() (s [maxEntries]string) {
	for i := range s {
		s[i] = strconv.Itoa(i)
	}
	return s
}()

func id(i int) *string { return &ids[i] }
