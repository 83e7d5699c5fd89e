package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"sync/atomic"

	"github.com/waybill-go/waybill"
)

// A role prints one letter a happening on its standard output, for the demo to count: a letter that it printed before
// it was killed stays true. A service of your own reads metrics instead.
const (
	sawPublished = 'P'
	sawDelivered = 'D'
	sawDuplicate = 'd'
)

func saw(what byte) {
	if _, err := os.Stdout.Write([]byte{what}); err != nil {
		os.Exit(1) // the demo is gone
	}
}

func countDeliveries(next waybill.HandleFunc) waybill.HandleFunc {
	return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		saw(sawDelivered)
		status, err := next(ctx, d)
		if err == nil && status == waybill.HandlerDuplicate {
			saw(sawDuplicate)
		}
		return status, err
	}
}

// tally counts the letters of the roles, over all their lives.
type tally struct{ published, delivered, duplicates, kills, faults atomic.Int64 }

func (t *tally) read(r io.Reader) {
	in := bufio.NewReader(r)
	for {
		b, err := in.ReadByte()
		if err != nil {
			return
		}
		switch b {
		case sawPublished:
			t.published.Add(1)
		case sawDelivered:
			t.delivered.Add(1)
		case sawDuplicate:
			t.duplicates.Add(1)
		}
	}
}
