package rabbitmq

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill/core"
)

var _ core.Checker = (*receiver)(nil)

// Check implements core.Checker: an outage if the connection is lost. It makes no round trip. The next Receive connects
// again.
func (r *receiver) Check(context.Context) error {
	r.mu.Lock()
	s, closed := r.sess, r.closed
	r.mu.Unlock()
	if closed || s != nil && !s.ch.IsClosed() {
		return nil
	}
	return outage("receive", errors.New("the connection is lost"))
}
