package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/store/sqlite"
)

// counts is what the workers reported, over all their lives.
type counts struct{ placed, published, delivered, duplicates, killed atomic.Int64 }

func run(ctx context.Context) (err error) {
	started := time.Now()
	dir, err := os.MkdirTemp("", "waybill-quickstart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "orders.db")
	store, err := sqlite.Open(ctx, path, sqlite.Options{Source: "/orders", AutoMigrate: true, BusyTimeout: busyTimeout})
	if err != nil {
		return err
	}
	defer store.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the folder goes too
	if _, err := store.DB().ExecContext(ctx, tables); err != nil {
		return err
	}

	fmt.Printf("Placing %d orders in %s, each with its message in one transaction.\n", orders, path)
	fmt.Printf("A worker process relays and bills them; it is killed with SIGKILL %d times.\n\n", kills)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var n counts
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return placeOrders(gctx, store, &n.placed) })
	g.Go(func() error { return superviseWorker(gctx, store.DB(), path, &n) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("%w (orders placed: %d, published: %d)", err, n.placed.Load(), n.published.Load())
	}
	return report(ctx, store.DB(), &n, time.Since(started))
}

// superviseWorker keeps a worker running until everything is billed, and kills it on the way.
func superviseWorker(ctx context.Context, db *sql.DB, path string, n *counts) error {
	for {
		w, err := startWorker(ctx, path, n)
		if err != nil {
			return err
		}
		done, err := watch(ctx, db, w, n)
		switch {
		case err != nil:
			return errors.Join(err, w.stop(os.Kill))
		case done:
			return w.stop(os.Interrupt)
		}
		if err := w.stop(os.Kill); err != nil { // SIGKILL: no goodbye, leases and all
			return err
		}
		n.killed.Add(1)
		fmt.Printf("  %5d orders tried · killed the worker (SIGKILL %d of %d) · starting another\n", n.placed.Load(), n.killed.Load(), kills)
	}
}

// watch reports progress until it is time to kill the worker (false) or everything is billed (true).
func watch(ctx context.Context, db *sql.DB, w *worker, n *counts) (done bool, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	shown := time.Now()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-w.exited:
			return false, errors.New("the worker ended by itself")
		case <-tick.C:
		}
		billed, err := count(ctx, db, `SELECT count(DISTINCT order_id) FROM bills`)
		if err != nil {
			return false, err
		}
		if time.Since(shown) > 400*time.Millisecond {
			shown = time.Now()
			fmt.Printf("  %5d orders tried · %4d published · %4d billed · %d duplicates suppressed\n",
				n.placed.Load(), n.published.Load(), billed, n.duplicates.Load())
		}
		if k := n.killed.Load(); k < kills {
			if int64(billed) >= orders*(k+1)/(kills+2) {
				return false, nil
			}
			continue
		}
		left, err := count(ctx, db, `SELECT count(*) FROM orders WHERE id NOT IN (SELECT order_id FROM bills)`)
		if err != nil {
			return false, err
		}
		waiting, err := count(ctx, db, `SELECT count(*) FROM waybill_outbox`)
		if err != nil {
			return false, err
		}
		if n.placed.Load() == orders && left == 0 && waiting == 0 {
			return true, nil
		}
	}
}

// report counts business rows and effect rows, not Waybill's own figures, and fails if they do not agree.
func report(ctx context.Context, db *sql.DB, n *counts, took time.Duration) error {
	var figures [6]int
	for i, q := range []string{
		`SELECT count(*) FROM orders`,
		`SELECT count(*) FROM bills`,
		`SELECT count(*) FROM orders WHERE id NOT IN (SELECT order_id FROM bills)`,
		`SELECT count(*) - count(DISTINCT order_id) FROM bills`,
		`SELECT count(*) FROM bills WHERE order_id NOT IN (SELECT id FROM orders)`,
		`SELECT seq FROM sqlite_sequence WHERE name = 'waybill_outbox'`, // rows ever committed to the outbox
	} {
		v, err := count(ctx, db, q)
		if err != nil {
			return err
		}
		figures[i] = v
	}
	committed, effects, lost, doubled, phantom, staged := figures[0], figures[1], figures[2], figures[3], figures[4], figures[5]
	fmt.Printf(`
  orders committed        %5d   (%d more were rolled back, and their messages with them)
  messages staged         %5d
  published               %5d   (again after each kill, as far as its outcome was unknown)
  delivered               %5d
  duplicates suppressed   %5d
  effects                 %5d
  lost                    %5d
  doubled                 %5d
  without an order        %5d

%d kills survived in %.1f s.
`, committed, orders-committed, staged, n.published.Load(), n.delivered.Load(), n.duplicates.Load(), effects, lost, doubled, phantom,
		n.killed.Load(), took.Seconds())
	if want := orders - orders/10; committed != want || staged != want || effects != want || lost != 0 || doubled != 0 || phantom != 0 || n.killed.Load() != kills {
		return fmt.Errorf("expected %d orders, as many messages and effects, %d kills, nothing lost, doubled or without an order", want, kills)
	}
	return nil
}

func count(ctx context.Context, db *sql.DB, query string) (n int, err error) {
	err = db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

// worker is a child process: this program again, in its other role.
type worker struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

func startWorker(ctx context.Context, path string, n *counts) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"="+path)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // closed when this process ends, however it ends
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(w.exited)
		in := bufio.NewReader(out)
		for {
			b, err := in.ReadByte()
			if err != nil {
				return
			}
			switch b {
			case sawPublished:
				n.published.Add(1)
			case sawDelivered:
				n.delivered.Add(1)
			case sawDuplicate:
				n.duplicates.Add(1)
			}
		}
	}()
	return w, nil
}

// stop ends the worker with sig and reads its last output.
func (w *worker) stop(sig os.Signal) error {
	if err := w.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-w.exited
	err := w.cmd.Wait()
	if exit := (*exec.ExitError)(nil); sig == os.Kill && errors.As(err, &exit) {
		return nil // killed, as asked
	}
	return err
}
