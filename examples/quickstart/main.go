// Command quickstart shows the whole of Waybill without any server: orders are placed in a SQLite file, each with its
// message in the same transaction; a worker process moves the messages through an in-process transport to a handler
// that bills each order exactly once. The worker is killed with SIGKILL several times in the middle. At the end the
// program counts business rows and effect rows and exits non-zero if one was lost or doubled.
//
//	go run ./examples/quickstart
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	orders    = 1000 // orders to try
	producers = 4    // goroutines that place them
	kills     = 3    // times the worker is killed

	// SQLite lets one process write at a time, and not in the order in which they asked.
	busyTimeout = 30 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var err error
	if path := os.Getenv(workerEnv); path != "" {
		err = runWorker(ctx, path)
	} else {
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}
