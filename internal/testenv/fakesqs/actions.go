package fakesqs

import (
	"context"
	"crypto/md5" //nolint:gosec // the protocol's checksum
	"encoding/hex"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// input is the input of all actions.
type input struct {
	QueueName           string
	QueueUrl            string //nolint:staticcheck // the protocol's name
	Attributes          map[string]string
	Entries             []batchEntry
	MaxNumberOfMessages int
	VisibilityTimeout   *int
	WaitTimeSeconds     int
}

type batchEntry struct {
	Id                     string //nolint:staticcheck // the protocol's name
	MessageBody            string
	DelaySeconds           int
	MessageAttributes      map[string]Attribute
	MessageGroupId         string //nolint:staticcheck // the protocol's name
	MessageDeduplicationId string //nolint:staticcheck // the protocol's name
	ReceiptHandle          string
	VisibilityTimeout      int
}

type object = map[string]any

const (
	account    = "000000000000"
	batchLimit = 10
	byteLimit  = 1 << 20
)

// handle answers all actions but ReceiveMessage. s.mu is held.
func (s *Server) handle(action, name string, in *input) (any, *Error) {
	if action == "CreateQueue" {
		return s.create(name, in)
	}
	q := s.queues[name]
	if q == nil {
		return nil, fail("QueueDoesNotExist", "The specified queue does not exist.")
	}
	switch action {
	case "GetQueueUrl":
		return object{"QueueUrl": s.url(name)}, nil
	case "GetQueueAttributes":
		return object{"Attributes": q.described(s.now())}, nil
	case "SendMessageBatch":
		if e := checkBatch(q, in.Entries); e != nil {
			return nil, e
		}
		return s.batch(action, q, in, func(e *batchEntry) (object, *Error) { return s.send(q, e) }), nil
	case "DeleteMessageBatch":
		return s.batch(action, q, in, func(e *batchEntry) (object, *Error) { return object{"Id": e.Id}, s.remove(q, e.ReceiptHandle) }), nil
	case "ChangeMessageVisibilityBatch":
		return s.batch(action, q, in, func(e *batchEntry) (object, *Error) {
			return object{"Id": e.Id}, s.hide(q, e.ReceiptHandle, time.Duration(e.VisibilityTimeout)*time.Second)
		}), nil
	}
	return nil, fail("InvalidAction", "The action %s is not known.", action)
}

func (s *Server) url(name string) string { return s.http.URL + "/" + account + "/" + name }

func (s *Server) create(name string, in *input) (any, *Error) {
	if q := s.queues[name]; q != nil {
		for k, v := range in.Attributes {
			if q.attributes[k] != v {
				return nil, fail("QueueNameExists", "A queue already exists with the same name and a different value for attribute %s", k)
			}
		}
		return object{"QueueUrl": s.url(name)}, nil
	}
	stem := strings.TrimSuffix(name, ".fifo")
	if len(name) > 80 || stem == "" || strings.Trim(stem, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		return nil, fail("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	if (stem != name) != (in.Attributes["FifoQueue"] == "true") {
		return nil, fail("InvalidParameterValue", "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix")
	}
	a := map[string]string{"QueueArn": "arn:aws:sqs:us-east-1:" + account + ":" + name, "DelaySeconds": "0", "MaximumMessageSize": strconv.Itoa(byteLimit)}
	maps.Copy(a, in.Attributes)
	s.queues[name] = &queue{name: name, attributes: a, seen: map[string]sighting{}}
	return object{"QueueUrl": s.url(name)}, nil
}

// checkBatch returns the error of a batch as a whole.
func checkBatch(q *queue, entries []batchEntry) *Error {
	if len(entries) > batchLimit {
		return fail("TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent %d.", len(entries))
	}
	size, seen := 0, map[string]bool{}
	for i := range entries {
		e := &entries[i]
		if seen[e.Id] {
			return fail("BatchEntryIdsNotDistinct", "Id %s repeated.", e.Id)
		}
		seen[e.Id] = true
		if q.fifo() && e.MessageGroupId == "" {
			return fail("MissingParameter", "The request must contain the parameter MessageGroupId.")
		}
		size += e.size()
	}
	if size > byteLimit {
		return fail("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", byteLimit, size)
	}
	return nil
}

func (e *batchEntry) size() int {
	n := len(e.MessageBody)
	for name, a := range e.MessageAttributes {
		n += len(name) + len(a.DataType) + len(a.BinaryValue)
		if a.StringValue != nil {
			n += len(*a.StringValue)
		}
	}
	return n
}

// batch runs fn for each entry that no fault is asked for.
func (s *Server) batch(action string, q *queue, in *input, fn func(*batchEntry) (object, *Error)) any {
	var ok, failed []object
	for i := range in.Entries {
		var out object
		e := (*Error)(nil)
		if s.fault != nil {
			e = s.fault(Request{Action: action, Queue: q.name, Entry: i, Body: in.Entries[i].MessageBody})
		}
		if e == nil {
			out, e = fn(&in.Entries[i])
		}
		if e != nil {
			failed = append(failed, object{"Id": in.Entries[i].Id, "Code": e.Code, "Message": e.Message, "SenderFault": !e.Server})
			continue
		}
		ok = append(ok, out)
	}
	return object{"Successful": ok, "Failed": failed}
}

func (s *Server) send(q *queue, e *batchEntry) (object, *Error) {
	switch {
	case !legal(e.MessageBody):
		return nil, fail("InvalidMessageContents", "Invalid characters in the message.")
	case len(e.MessageAttributes) > 10:
		return nil, fail("InvalidParameterValue", "Number of message attributes [%d] exceeds the allowed maximum [10].", len(e.MessageAttributes))
	case e.DelaySeconds < 0 || e.DelaySeconds > 900 || q.fifo() && e.DelaySeconds != 0:
		return nil, fail("InvalidParameterValue", "Value %d for parameter DelaySeconds is invalid.", e.DelaySeconds)
	case len(e.MessageGroupId) > 128 || strings.ContainsFunc(e.MessageGroupId, func(c rune) bool { return c <= ' ' || c > '~' }):
		return nil, fail("InvalidParameterValue", "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.")
	}
	if n, err := strconv.Atoi(q.attributes["MaximumMessageSize"]); err == nil && e.size() > n {
		return nil, fail("InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", n)
	}
	for name, a := range e.MessageAttributes {
		if a.StringValue == nil && len(a.BinaryValue) == 0 || a.StringValue != nil && !legal(*a.StringValue) {
			return nil, fail("InvalidParameterValue", "The message attribute '%s' has an invalid value.", name)
		}
	}
	m := &Message{Body: e.MessageBody, Attributes: e.MessageAttributes, Group: e.MessageGroupId, Dedup: e.MessageDeduplicationId}
	id := s.add(q, m, time.Duration(e.DelaySeconds)*time.Second)
	return object{"Id": e.Id, "MessageId": id, "MD5OfMessageBody": checksum(e.MessageBody)}, nil
}

func checksum(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // the protocol's
	return hex.EncodeToString(sum[:])
}

func legal(s string) bool {
	return s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool {
		return c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == '\ufffe' || c == '\uffff'
	})
}

// receive waits for messages. A client that is gone gets none.
func (s *Server) receive(ctx context.Context, name string, in *input) (any, *Error) {
	end := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		s.mu.Lock()
		q := s.queues[name]
		if q == nil {
			s.mu.Unlock()
			return nil, fail("QueueDoesNotExist", "The specified queue does not exist.")
		}
		if ctx.Err() != nil {
			s.mu.Unlock()
			return object{}, nil
		}
		hide, _ := strconv.Atoi(q.attributes["VisibilityTimeout"])
		if in.VisibilityTimeout != nil {
			hide = *in.VisibilityTimeout
		}
		got, next := s.take(q, max(in.MaxNumberOfMessages, 1), time.Duration(hide)*time.Second)
		out := make([]object, len(got))
		for i, m := range got {
			out[i] = m.answer()
		}
		changed := s.changed
		until := end
		if !next.IsZero() && next.Add(-s.ahead).Before(end) {
			until = next.Add(-s.ahead)
		}
		s.mu.Unlock()
		if len(got) > 0 || !time.Now().Before(end) {
			return object{"Messages": out}, nil
		}
		t := time.NewTimer(max(time.Until(until), time.Millisecond))
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func (m *Message) answer() object {
	return object{
		"MessageId": m.ID, "ReceiptHandle": m.receipt, "Body": m.Body, "MD5OfBody": checksum(m.Body), "MessageAttributes": m.Attributes,
		"Attributes": map[string]string{"ApproximateReceiveCount": strconv.Itoa(m.Receives), "MessageGroupId": m.Group, "SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10)},
	}
}
