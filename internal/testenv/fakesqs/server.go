// Package fakesqs is a server that speaks the JSON protocol of Amazon SQS, in the process of a test. It knows what
// emulators do not: several messages of a group in one answer, receipt handles that expire, the limit of 12 hours,
// deduplication by a clock of its own, throttling, and entries of a batch that fail.
//
// It is written from the documentation of SQS. A test that passes against it was not tried against SQS.
package fakesqs

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Server is a fake SQS. It is safe for concurrent use.
type Server struct {
	http *httptest.Server

	mu      sync.Mutex
	queues  map[string]*queue
	ahead   time.Duration // of the clock
	changed chan struct{}
	fault   func(Request) *Error
	calls   map[string]int
	polls   map[string]int // in progress
	serial  int
}

// Request is what a fault is asked about: a whole call, or an entry of a batch.
type Request struct {
	Action string // such as "SendMessageBatch"
	Key    string // id of the access key that signed a whole call
	Queue  string
	// Entry is the number of the entry, from 0; -1 = the whole call.
	Entry int
	// Body is the message's, of an entry to send.
	Body string
}

// Error is an answer of SQS that is no success.
type Error struct {
	Code, Message string
	// Status is the HTTP status of a whole call; 0 = 400.
	Status int
	// Server: it is not the sender's fault.
	Server bool
}

func fail(code, format string, a ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, a...)}
}

// Start starts a server on a free port of the loopback interface. The caller must Close it.
func Start() *Server {
	s := &Server{queues: map[string]*queue{}, changed: make(chan struct{}), calls: map[string]int{}, polls: map[string]int{}}
	s.http = httptest.NewServer(s)
	return s
}

// URL is the endpoint.
func (s *Server) URL() string { return s.http.URL }

// Close ends the server and its connections.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// CutConnections ends all connections, as a restart would. Messages stay.
func (s *Server) CutConnections() { s.http.CloseClientConnections() }

// Fail has fn decide which calls and which entries fail; nil ends that.
func (s *Server) Fail(fn func(Request) *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fn
}

// Advance puts the server's clock forward.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
	s.wake()
}

// Calls returns how often an action was called.
func (s *Server) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
}

// Polls returns how many requests for messages that an access key signed are in progress. SQS can give messages to
// those of a process that has just been killed.
func (s *Server) Polls(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polls[key]
}

// poll notes that a request for messages begins (1) or ends (-1).
func (s *Server) poll(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls[key] += n
}

// Queues returns the names of the queues.
func (s *Server) Queues() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.queues))
}

// SetAttribute changes an attribute of a queue, which must exist.
func (s *Server) SetAttribute(queue, name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[queue].attributes[name] = value
}

// Attributes returns the attributes of a queue, nil if there is none.
func (s *Server) Attributes(queue string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[queue]; q != nil {
		return q.attributes
	}
	return nil
}

func (s *Server) now() time.Time { return time.Now().Add(s.ahead) }

// wake ends the waiting of all polls. s.mu is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP answers one call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var in input
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		answer(w, nil, fail("InvalidRequest", "%v", err))
		return
	}
	name := in.QueueName
	if i := strings.LastIndexByte(in.QueueUrl, '/'); i >= 0 {
		name = in.QueueUrl[i+1:]
	}
	_, key, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ = strings.Cut(key, "/")
	if e := s.begin(action, name, key); e != nil {
		answer(w, nil, e)
		return
	}
	if action == "ReceiveMessage" {
		s.poll(key, 1)
		defer s.poll(key, -1)
		out, e := s.receive(r.Context(), name, &in)
		answer(w, out, e)
		return
	}
	s.mu.Lock()
	out, e := s.handle(action, name, &in)
	s.mu.Unlock()
	answer(w, out, e)
}

// begin counts a call and returns the fault that was asked for.
func (s *Server) begin(action, queue, key string) *Error {
	s.mu.Lock()
	fn := s.fault
	s.calls[action]++
	s.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(Request{Action: action, Key: key, Queue: queue, Entry: -1})
}

// queryCodes are the codes of the older protocol, which SQS adds in a header, where they differ.
var queryCodes = map[string]string{
	"QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue", "QueueNameExists": "QueueAlreadyExists",
	"BatchRequestTooLong":          "AWS.SimpleQueueService.BatchRequestTooLong",
	"TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
}

func answer(w http.ResponseWriter, out any, e *Error) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if e == nil {
		_ = json.NewEncoder(w).Encode(out)
		return
	}
	side := "Sender"
	if e.Server {
		side = "Receiver"
	}
	if code := queryCodes[e.Code]; code != "" {
		w.Header().Set("X-Amzn-Query-Error", code+";"+side)
	}
	status := e.Status
	if status == 0 {
		status = http.StatusBadRequest
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": "com.amazonaws.sqs#" + e.Code, "message": e.Message})
}

// Delete deletes a queue.
func (s *Server) Delete(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, queue)
	s.wake()
}
