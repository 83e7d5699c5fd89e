package transform_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transform"
)

// blobs keeps bodies in memory.
type blobs struct {
	mu   sync.Mutex
	all  map[string][]byte
	down bool
}

func (b *blobs) Put(_ context.Context, name string, body []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errors.New("no answer")
	}
	if b.all == nil {
		b.all = map[string][]byte{}
	}
	b.all[name] = bytes.Clone(body)
	return nil
}

func (b *blobs) Get(_ context.Context, name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, errors.New("no answer")
	}
	if body, ok := b.all[name]; ok {
		return body, nil
	}
	return nil, transform.ErrNoBlob
}

func (b *blobs) set(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

// wire is a publisher that keeps the published messages.
type wire struct {
	traits core.PublisherTraits
	fail   func(e waybill.Envelope) error
	calls  [][]waybill.Envelope
}

func (w *wire) Traits() core.PublisherTraits { return w.traits }

func (w *wire) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	w.calls = append(w.calls, slices.Clone(batch))
	res := make(core.Results, len(batch))
	for i := range batch {
		if w.fail != nil {
			res[i] = w.fail(batch[i])
		}
	}
	return res
}

func (w *wire) sent() (all []waybill.Envelope) { return slices.Concat(w.calls...) }

var keys = map[string][]byte{"old": []byte("0123456789abcdef0123456789abcdef"), "new": []byte("fedcba9876543210fedcba9876543210-and-more")}

func encrypt(id string) transform.Encrypt {
	return transform.Encrypt{KeyID: id, Keys: transform.StaticKeys(keys)}
}

func publish(t *testing.T, w *wire, batch []waybill.Envelope, steps ...transform.Step) core.Results {
	t.Helper()
	p, err := transform.Publisher(w, steps...)
	if err != nil {
		t.Fatal(err)
	}
	return p.Publish(t.Context(), batch)
}

// handle gives a message of the wire to a handler with steps, and returns the handler's delivery.
func handle(t *testing.T, e waybill.Envelope, steps ...transform.Step) (*waybill.Delivery, error) {
	t.Helper()
	var got *waybill.Delivery
	h, err := transform.Handler(waybill.Handler{Name: "t", Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		if from, ok := waybill.DeliveryFrom(ctx); ok && from != d {
			t.Error("the context has another delivery than the handler")
		}
		got = d
		return waybill.HandlerProcessed, nil
	}}, steps...)
	if err != nil {
		t.Fatal(err)
	}
	d := &waybill.Delivery{Envelope: e, Queue: "q", Attempt: 2}
	before := e.Clone()
	_, err = h.Handle(waybill.WithDelivery(t.Context(), d), d)
	if !bytes.Equal(d.Envelope.Body, before.Body) || !maps.Equal(d.Envelope.Headers, before.Headers) {
		t.Error("the delivery itself was changed")
	}
	return got, err
}

func random(n int) []byte {
	body := make([]byte, n)
	for i, x := 0, uint32(1); i < n; i++ {
		x = x*1664525 + 1013904223
		body[i] = byte(x >> 24)
	}
	return body
}

// A handler that has the steps of the publisher, and more, undoes them. The order of its steps does not matter.
func TestRoundTrip(t *testing.T) { // ST-18
	t.Parallel()
	kept := &blobs{}
	all := []transform.Step{transform.Gzip{MinBytes: 1}, encrypt("new"), transform.ClaimCheck{Blobs: kept, MinBytes: 100}}
	backwards := slices.Clone(all)
	backwards[1] = transform.Encrypt{Keys: transform.StaticKeys(keys), AllowPlain: true} // some messages are plain
	slices.Reverse(backwards)
	for steps := 1; steps < 8; steps++ {
		var some []transform.Step
		for i, s := range all {
			if steps>>i&1 == 1 {
				some = append(some, s)
			}
		}
		for _, body := range [][]byte{nil, []byte("a"), []byte(strings.Repeat("order ", 1000)), random(3000), random(70_000)} {
			e := waybill.Envelope{ID: "1", Topic: "t", ContentType: "application/json", Headers: map[string]string{"a": "b"}, Body: body}
			before := e.Clone()
			w := &wire{}
			if err := publish(t, w, []waybill.Envelope{e}, some...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(e.Body, before.Body) || !maps.Equal(e.Headers, before.Headers) {
				t.Fatal("the record itself was changed")
			}
			sent := w.sent()[0]
			if sent.Headers["a"] != "b" || sent.ContentType != e.ContentType || sent.ID != "1" {
				t.Errorf("sent %+v", sent)
			}
			got, err := handle(t, sent, backwards...)
			if err != nil {
				t.Fatalf("steps %b: %v", steps, err)
			}
			if !bytes.Equal(got.Envelope.Body, body) || !maps.Equal(got.Envelope.Headers, before.Headers) || got.Attempt != 2 || got.Queue != "q" {
				t.Errorf("steps %b, %d bytes: arrived %d bytes with headers %v", steps, len(body), len(got.Envelope.Body), got.Envelope.Headers)
			}
			if steps&2 != 0 && len(body) > 100 && bytes.Contains(sent.Body, body[:20]) {
				t.Error("the body is readable on the wire")
			}
		}
	}
}

// The header names the steps in their order, as in HTTP; small and incompressible bodies stay as they are.
func TestHeader(t *testing.T) { // ST-18
	t.Parallel()
	big := strings.Repeat("x", 2000)
	for _, c := range []struct {
		body, want string
		steps      []transform.Step
	}{
		{big, "gzip, waybill-aes256gcm", []transform.Step{transform.Gzip{}, encrypt("old")}},
		{"x", "waybill-aes256gcm", []transform.Step{transform.Gzip{}, encrypt("old")}},
		{"x", "", []transform.Step{transform.Gzip{}}},
		{string(random(2000)), "", []transform.Step{transform.Gzip{}}},
		{big, "gzip, claim-check", []transform.Step{transform.Gzip{}, transform.ClaimCheck{Blobs: &blobs{}, MinBytes: 5}}},
		{big, "", []transform.Step{transform.ClaimCheck{Blobs: &blobs{}}}},
	} {
		w := &wire{}
		publish(t, w, []waybill.Envelope{{Body: []byte(c.body)}}, c.steps...)
		if got := w.sent()[0].Headers[transform.Header]; got != c.want {
			t.Errorf("%d bytes: %q, want %q", len(c.body), got, c.want)
		}
	}
	got, err := handle(t, waybill.Envelope{Body: []byte("x"), Headers: map[string]string{transform.Header: "identity"}}, transform.Gzip{})
	if err != nil || string(got.Envelope.Body) != "x" {
		t.Errorf("identity: %v, %v", got, err)
	}
}

// A service that does not answer is an outage. A missing thing may come later; if it does not, the message is parked as
// undecodable. A body that no repair makes readable is parked at once. No text holds a body or a secret.
func TestWhatCannotBeUndone(t *testing.T) { // ST-18
	t.Parallel()
	kept := &blobs{}
	secret := "the body, which nobody may see " + strings.Repeat("!", 3000)
	sealed := func(steps ...transform.Step) waybill.Envelope {
		w := &wire{}
		publish(t, w, []waybill.Envelope{{ID: "1", Body: []byte(secret)}}, steps...)
		return w.sent()[0]
	}
	spoilt := func(e waybill.Envelope, fn func(body []byte) []byte) waybill.Envelope {
		e.Body = fn(bytes.Clone(e.Body))
		return e
	}
	flip := func(at int) func([]byte) []byte {
		return func(body []byte) []byte { body[(at+len(body))%len(body)] ^= 1; return body }
	}
	cut := func(n int) func([]byte) []byte { return func(body []byte) []byte { return body[:len(body)-n] } }
	few := transform.Encrypt{Keys: transform.StaticKeys(map[string][]byte{"old": keys["old"], "short": []byte("x")})}
	check := transform.ClaimCheck{Blobs: kept, MinBytes: 1}
	claimed := sealed(check)
	wrong := &blobs{all: map[string][]byte{}}
	flipped := &blobs{all: map[string][]byte{}}
	for name, body := range kept.all {
		wrong.all[name] = []byte("something else")
		flipped.all[name] = flip(-1)(bytes.Clone(body))
	}
	for _, c := range []struct {
		name  string
		e     waybill.Envelope
		step  transform.Step
		class waybill.Class
		text  string
	}{
		{"unknown key", sealed(encrypt("new")), few, waybill.ClassRejected, `key "new": no such key`},
		{"unknown coding", sealed(encrypt("new")), transform.Gzip{}, waybill.ClassRejected, "waybill-aes256gcm"},
		{"short secret", spoilt(sealed(encrypt("old")), func([]byte) []byte {
			return append([]byte("\x01\x05short"), make([]byte, 44)...)
		}), few, waybill.ClassOutage, "needs at least 32"},
		{"keys do not answer", sealed(encrypt("new")), transform.Encrypt{Keys: func(context.Context, string) ([]byte, error) {
			return nil, errors.New("no answer")
		}}, waybill.ClassOutage, "no answer"},
		{"blobs do not answer", claimed, transform.ClaimCheck{Blobs: &blobs{down: true}}, waybill.ClassOutage, "no answer"},
		{"missing blob", claimed, transform.ClaimCheck{Blobs: &blobs{}}, waybill.ClassRejected, "no such blob"},
		{"another blob", claimed, transform.ClaimCheck{Blobs: wrong}, waybill.ClassRejected, "another content"},
		{"a changed byte in a blob", claimed, transform.ClaimCheck{Blobs: flipped}, waybill.ClassRejected, "another content"},
		{"another size", spoilt(claimed, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"size":3`), []byte(`"size":4`), 1)
		}), transform.ClaimCheck{Blobs: kept}, waybill.ClassPermanent, "another size"},
		{"changed", spoilt(sealed(encrypt("old")), flip(-1)), few, waybill.ClassPermanent, "was changed"},
		{"another salt", spoilt(sealed(encrypt("old")), flip(6)), few, waybill.ClassPermanent, "was changed"},
		{"cut off", spoilt(sealed(encrypt("old")), cut(1)), few, waybill.ClassPermanent, "was changed"},
		{"another version", spoilt(sealed(encrypt("old")), flip(0)), few, waybill.ClassPermanent, "was changed"},
		{"no id of a key", spoilt(sealed(encrypt("old")), func(b []byte) []byte { b[1] = 0; return b }), few, waybill.ClassPermanent, "was changed"},
		{"no salt", spoilt(sealed(encrypt("old")), func(b []byte) []byte { return b[:20] }), few, waybill.ClassPermanent, "was changed"},
		{"no body", spoilt(sealed(encrypt("old")), func(b []byte) []byte { return b[:1] }), few, waybill.ClassPermanent, "was changed"},
		{"gzip cut off", spoilt(sealed(transform.Gzip{}), cut(1)), transform.Gzip{}, waybill.ClassPermanent, "cut off"},
		{"not gzip", spoilt(sealed(transform.Gzip{}), flip(0)), transform.Gzip{}, waybill.ClassPermanent, "not compressed"},
		{
			"many codings",
			waybill.Envelope{Headers: map[string]string{transform.Header: strings.Repeat("gzip,", 9)}},
			transform.Gzip{},
			waybill.ClassPermanent, "at most 8",
		},
		{"a bomb", sealed(transform.Gzip{}), transform.Gzip{MaxBytes: len(secret) - 1}, waybill.ClassPermanent, "raise Gzip.MaxBytes"},
		{"large blob", claimed, transform.ClaimCheck{Blobs: kept, MaxBytes: 100}, waybill.ClassPermanent, "raise ClaimCheck.MaxBytes"},
		{"no claim", spoilt(claimed, flip(0)), check, waybill.ClassPermanent, "not a claim"},
		{"a path", spoilt(claimed, func(b []byte) []byte {
			return fmt.Appendf(nil, `{"blob":"../../%s","size":1}`, strings.Repeat("a", 58))
		}), check, waybill.ClassPermanent, "not hexadecimal"},
	} {
		got, err := handle(t, c.e, c.step)
		if got != nil || waybill.ClassOf(err) != c.class || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: class %s, error %v; handled: %t", c.name, waybill.ClassOf(err), err, got != nil)
		}
		if c.class != waybill.ClassOutage && waybill.ReasonOf(err) != waybill.ReasonUndecodable {
			t.Errorf("%s: reason %q", c.name, waybill.ReasonOf(err))
		}
		if strings.Contains(fmt.Sprint(err), "nobody may see") || strings.Contains(fmt.Sprint(err), string(keys["old"])) {
			t.Errorf("%s: the error tells too much: %v", c.name, err)
		}
	}
}

// named is a step that fails for some ids.
type named struct {
	fail func(id string) error
}

func (named) Coding() string  { return "named" }
func (named) Validate() error { return nil }
func (n named) Do(_ context.Context, e *waybill.Envelope) ([]byte, bool, error) {
	return append([]byte("*"), e.Body...), true, n.fail(e.ID)
}
func (named) Undo(_ context.Context, e *waybill.Envelope) ([]byte, error) { return e.Body[1:], nil }

// A failed message holds its key back, so that no message of the key overtakes it. An outage stops the rest.
func TestFailuresKeepTheOrder(t *testing.T) { // ST-18 OR-02
	t.Parallel()
	batch := []waybill.Envelope{{ID: "a1", Key: "a"}, {ID: "b1", Key: "b"}, {ID: "a2", Key: "a"}, {ID: "b2", Key: "b"}, {ID: "c1"}, {ID: "c2"}}
	for _, c := range []struct {
		err        error
		sent       string
		own, later waybill.Class // of b1, and of c1
	}{
		{errors.New("somewhere"), "a1", waybill.ClassOutage, waybill.ClassOutage},
		{transform.Unreadable("no"), "a1 a2 c1 c2", waybill.ClassPermanent, waybill.ClassUnknown},
		{&waybill.Error{Class: waybill.ClassRejected, Err: errors.New("no")}, "a1 a2 c1 c2", waybill.ClassRejected, waybill.ClassUnknown},
	} {
		w := &wire{}
		res := publish(t, w, batch, named{func(id string) error {
			if id == "b1" {
				return c.err
			}
			return nil
		}})
		var sent []string
		for _, e := range w.sent() {
			sent = append(sent, e.ID)
		}
		if got := strings.Join(sent, " "); got != c.sent {
			t.Errorf("%v: sent %s, want %s", c.err, got, c.sent)
		}
		if len(res) != len(batch) || waybill.ClassOf(res[1]) != c.own || !errors.Is(res[3], waybill.ErrPredecessorFailed) || res[0] != nil || waybill.ClassOf(res[4]) != c.later {
			t.Errorf("%v: results %v", c.err, res)
		}
	}
}

// The bounds of the transport hold for the changed bodies.
func TestBounds(t *testing.T) { // ST-18 TR-13
	t.Parallel()
	w := &wire{traits: core.PublisherTraits{MaxMessageBytes: 1000, MaxBatchBytes: 1500, MaxBatch: 7, Confirmed: true}}
	kept := &blobs{}
	p, err := transform.Publisher(w, transform.ClaimCheck{Blobs: kept, MinBytes: 2000})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Traits(); got != (core.PublisherTraits{MaxBatch: 7, Confirmed: true}) {
		t.Errorf("traits: %+v", got)
	}
	body := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	res := p.Publish(t.Context(), []waybill.Envelope{
		{ID: "1", Body: body(700)}, {ID: "2", Body: body(100_000)}, {ID: "3", Body: body(1100)}, {ID: "4", Body: body(700)}, {ID: "5", Body: body(700)},
	})
	if waybill.ReasonOf(res[2]) != waybill.ReasonTooLarge || waybill.ClassOf(res[2]) != waybill.ClassPermanent {
		t.Errorf("too large: %v", res[2])
	}
	if res[2] = nil; res.FirstErr() != nil || len(w.calls) != 2 || len(w.sent()) != 4 {
		t.Errorf("results %v in %d calls", res, len(w.calls))
	}
	w.calls, w.fail = nil, func(e waybill.Envelope) error {
		if e.ID == "2" {
			return waybill.Outage(nil)
		}
		return nil
	}
	res = p.Publish(t.Context(), []waybill.Envelope{{ID: "1", Body: body(900)}, {ID: "2", Body: body(900)}, {ID: "3", Body: body(900)}})
	if res[0] != nil || waybill.ClassOf(res[1]) != waybill.ClassOutage || !errors.Is(res[2], waybill.ErrPredecessorFailed) || len(w.calls) != 2 {
		t.Errorf("behind a part that failed: %v in %d calls", res, len(w.calls))
	}
	for _, s := range []transform.Step{transform.Gzip{MaxBytes: 5000}, transform.ClaimCheck{Blobs: kept, MinBytes: 1, MaxBytes: 5000}} {
		res := publish(t, &wire{}, []waybill.Envelope{{Body: body(5001)}, {Body: body(5000)}}, s)
		if waybill.ReasonOf(res[0]) != waybill.ReasonTooLarge || waybill.ClassOf(res[0]) != waybill.ClassPermanent || res[1] != nil {
			t.Errorf("%s: beyond its own bound: %v", s.Coding(), res)
		}
	}
	if len(p.Publish(t.Context(), nil)) != 0 {
		t.Error("results of nothing")
	}
}

// Bad steps are refused, all at once.
func TestBadSteps(t *testing.T) { // ST-18
	t.Parallel()
	bad := []transform.Step{
		nil,
		transform.Gzip{MinBytes: -1, MaxBytes: -2, Level: 11},
		transform.Encrypt{KeyID: strings.Repeat("x", 256)},
		transform.ClaimCheck{MinBytes: -1},
		transform.Gzip{},
		(*broken)(nil), &broken{},
	}
	_, err := transform.Publisher(nil, bad...)
	_, other := transform.Handler(waybill.Handler{}, bad...)
	for _, err := range []error{err, other} {
		if !errors.Is(err, waybill.ErrInvalid) {
			t.Fatal(err)
		}
		for _, want := range []string{"steps[0]: is nil", "MinBytes: -1", "MaxBytes: -2", "Level: 11", "Keys: is nil", "KeyID: has 256 bytes", "Blobs: is nil", `"gzip" is that of an earlier step`, "steps[5]: is nil", `"a b"`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in: %v", want, err)
			}
		}
	}
	if !strings.Contains(err.Error(), "next: is nil") || !strings.Contains(other.Error(), "h.Handle: is nil") {
		t.Errorf("%v\n%v", err, other)
	}
	if _, err := transform.Publisher(&wire{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
	res := publish(t, &wire{}, []waybill.Envelope{{Body: []byte("x")}}, transform.Encrypt{Keys: transform.StaticKeys(keys)})
	if waybill.ClassOf(res[0]) != waybill.ClassOutage || !strings.Contains(res[0].Error(), "KeyID is empty") {
		t.Error(res[0])
	}
}

type broken struct{ named }

func (*broken) Coding() string { return "a b" }

// A batch gets its deliveries changed back; if one cannot be, the runner asks for each alone.
func TestBatch(t *testing.T) { // ST-18
	t.Parallel()
	var got []string
	h, err := transform.Handler(waybill.Handler{
		Name:   "t",
		Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) { return 0, nil },
		Batch: func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			for _, d := range ds {
				got = append(got, string(d.Envelope.Body))
			}
			return make([]waybill.HandlerStatus, len(ds)), nil
		},
		BatchWait: time.Second,
	}, encrypt("old"))
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{}
	publish(t, w, []waybill.Envelope{{Body: []byte("a")}, {Body: []byte("b")}}, encrypt("old"))
	sent := w.sent()
	ds := []*waybill.Delivery{{Envelope: sent[0]}, {Envelope: sent[1]}}
	if _, err := h.Batch(t.Context(), ds); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v, %v", got, err)
	}
	plain := append(slices.Clone(ds), &waybill.Delivery{Envelope: waybill.Envelope{Body: []byte("plain")}})
	if _, err := h.Batch(t.Context(), plain); waybill.ClassOf(err) != waybill.ClassPermanent || len(got) != 2 {
		t.Errorf("plain text in a batch: %v, %v", err, got)
	}
	ds[1].Envelope.Body = ds[1].Envelope.Body[:30]
	if _, err := h.Batch(t.Context(), ds); waybill.ClassOf(err) != waybill.ClassPermanent {
		t.Error(err)
	}
}
