package consumer

import (
	"fmt"

	"github.com/waybill-go/waybill"
)

// complete lets foreign complete a usable delivery. A delivery that it cannot read gets an error.
func complete(d *waybill.Delivery, foreign func(*waybill.Envelope) error) {
	if foreign == nil || d.Err != nil {
		return
	}
	e := d.Envelope
	if err := completed(&e, foreign); err != nil {
		d.Err = &waybill.Error{
			Op: "waybill/consumer: Subscription.Foreign", Class: waybill.ClassPermanent, Reason: waybill.ReasonUndecodable, Err: err,
		}
		return
	}
	d.Envelope = e
}

// completed is foreign(e), which may panic on bytes from outside.
func completed(e *waybill.Envelope, foreign func(*waybill.Envelope) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked (%T)", p)
		}
	}()
	return foreign(e)
}
