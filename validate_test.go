package waybill_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

// valid has Validate on its pointer, and validValue on the value.
type valid struct {
	ID int `json:"id"`
}

func (v *valid) Validate() error {
	if v.ID == 0 {
		return errors.New("id is missing")
	}
	return nil
}

type validValue struct {
	ID int `json:"id"`
}

func (v validValue) Validate() error { return (*valid)(&v).Validate() }

// A value that does not fit is neither staged nor handed to a handler. A pointer to nothing fits no better.
// CO-23.
func TestValidate(t *testing.T) {
	t.Parallel()
	t.Run("pointer method", func(t *testing.T) { t.Parallel(); validated(t, valid{}, valid{ID: 7}) })
	t.Run("value method", func(t *testing.T) { t.Parallel(); validated(t, validValue{}, validValue{ID: 7}) })
	t.Run("pointer", func(t *testing.T) { t.Parallel(); validated(t, &valid{}, &valid{ID: 7}) })
	t.Run("nil", func(t *testing.T) { t.Parallel(); validated[*validValue](t, nil, &validValue{ID: 7}) })
}

func validated[T any](t *testing.T, bad, good T) {
	t.Helper()
	topic := waybill.NewTopic("orders.placed", waybill.JSON[T]())
	ran := 0
	h := waybill.HandlerFor(topic, func(context.Context, T) error { ran++; return nil })
	for _, body := range []string{`{}`, `{"totally":"different"}`, `null`} {
		d := &waybill.Delivery{Envelope: waybill.Envelope{ID: "m-1", Topic: "orders.placed", Body: []byte(body)}}
		_, err := h.Handle(t.Context(), d)
		if ran != 0 || waybill.ReasonOf(err) != waybill.ReasonUndecodable || waybill.ClassOf(err) != waybill.ClassPermanent {
			t.Errorf("%s: %v, and the handler ran %d times", body, err, ran)
		}
	}
	d := &waybill.Delivery{Envelope: waybill.Envelope{ID: "m-1", Topic: "orders.placed", Body: []byte(`{"id":7}`)}}
	if _, err := h.Handle(t.Context(), d); err != nil || ran != 1 {
		t.Errorf("a body that fits: %v, and the handler ran %d times", err, ran)
	}
	m := topic.Message(good)
	if err := m.EncodeError(); err != nil || string(m.Body) != `{"id":7}` {
		t.Errorf("a value that fits: %v, body %s", err, m.Body)
	}
	m = topic.Message(bad)
	if err := m.EncodeError(); err == nil || !strings.Contains(err.Error(), `topic "orders.placed": `) {
		t.Errorf("a value that does not fit: %v", err)
	}
}
