package waybill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waybill-go/waybill/internal/check"
)

// Runner is what runs until its context ends: a relay, a consumer.
type Runner interface {
	// Run works until ctx ends, finishes what it has begun, and returns nil. Any other end is an error.
	Run(ctx context.Context) error
}

// Run runs all runners side by side until ctx ends, and returns when the last one has finished. If one fails, the
// others are told to stop. The error joins those of all. With signal.NotifyContext a service stops without losing work:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	context.AfterFunc(ctx, stop) // a second signal ends the process at once
//	err := waybill.Run(ctx, relay, consumer)
func Run(ctx context.Context, runners ...Runner) error {
	var p []string
	for i, r := range runners {
		if check.Nil(r) {
			p = append(p, fmt.Sprintf("runners[%d]: is nil; look at the error of its constructor", i))
		}
	}
	if err := Invalid("waybill: run", p...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(runners))
	var group sync.WaitGroup
	for i, r := range runners {
		group.Go(func() {
			if errs[i] = r.Run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
