package repeats_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core/repeats"
)

var errNoAnswer = &waybill.Error{Class: waybill.ClassOutage, Err: errors.New("no answer")}

// TR-17: the repeats of a message have one id until its result is known, and an edited message has another one.
func TestRepeatsHaveOneID(t *testing.T) {
	t.Parallel()
	var m repeats.Memory
	e := waybill.Envelope{ID: "1", Source: "/a", Topic: "t", Body: []byte("body")}
	edited := e
	edited.Body = []byte("another")
	if id := m.ID(&e); id != "" {
		t.Errorf("the first try has the id %q", id)
	}
	m.Note(&e, "", errNoAnswer)
	first := m.ID(&e)
	m.Note(&e, "", errNoAnswer)
	if id := m.ID(&e); first == "" || id != first {
		t.Errorf("the repeats have the ids %q and %q", first, id)
	}
	if id := m.ID(&edited); id != "" {
		t.Errorf("an edited message has the id %q", id)
	}
	m.Note(&e, first, nil)
	if id := m.ID(&e); id != "" {
		t.Errorf("a message that is sent again on purpose has the id %q", id)
	}
	m.Note(&e, "given", errNoAnswer)
	if id := m.ID(&e); id != "given" {
		t.Errorf("the repeats have the id %q, want that of the first try", id)
	}
	m.Note(&e, "given", &waybill.Error{Class: waybill.ClassRejected, Err: errors.New("no")})
	if id := m.ID(&e); id != "" {
		t.Errorf("a refused message has the id %q", id)
	}
}

// A memory is bounded.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	var m repeats.Memory
	const n = 25_000
	known := 0
	for i := range n {
		m.Note(&waybill.Envelope{ID: strconv.Itoa(i)}, "", errNoAnswer)
	}
	for i := range n {
		if m.ID(&waybill.Envelope{ID: strconv.Itoa(i)}) != "" {
			known++
		}
	}
	if known > 10_000 || known == 0 || m.ID(&waybill.Envelope{ID: strconv.Itoa(n - 1)}) == "" {
		t.Errorf("%d messages are remembered", known)
	}
}
