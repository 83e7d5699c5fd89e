package rabbitmq

import (
	"errors"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// With PipelineKeys a message that the broker confirmed behind a failed one of its key has failed too, so that it is
// sent again behind that one.
func TestConfirmedBehindAFailedOne(t *testing.T) {
	t.Parallel()
	full := errors.New("the queue is full")
	var batch []waybill.Envelope
	for _, key := range []string{"k", "", "k", "other", "k", "k", ""} {
		batch = append(batch, waybill.Envelope{Key: key})
	}
	results := core.Results{nil, full, full, nil, nil, errNacked, nil}
	failBehind(batch, results)
	for i, want := range []error{nil, full, full, nil, waybill.ErrPredecessorFailed, errNacked, nil} {
		if got := results[i]; !errors.Is(got, want) {
			t.Errorf("message %d: %v, want %v", i, got, want)
		}
	}
}
