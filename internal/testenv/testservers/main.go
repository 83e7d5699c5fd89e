// Command testservers starts one PostgreSQL and one RabbitMQ server, and runs a command that finds them through the
// WAYBILL_TEST_ variables:
//
//	go run ./internal/testenv/testservers go test ./...
//
// Without it every test binary starts its own. Servers that the variables already name are not started; one that cannot
// be started here is left to the tests, which say what to do about it. The servers end with the command, however it
// ends. The exit code is the command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"github.com/waybill-go/waybill/internal/testenv"
)

// noSync saves the tests of the Postgres store a twelfth of their time: no test kills this server, and a killed process
// loses nothing that it gave to the kernel.
var noSync = map[string]string{"fsync": "off", "full_page_writes": "off", "waybill.allow_unsafe_settings": "on"}

// room is twice what the files of all servers need at the same time in a run of all tests.
const room = 2 << 30

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testservers command [argument ...]")
		os.Exit(2)
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(command []string) (int, error) {
	if dir := testenv.InMemory(room); dir != "" && os.Getenv(testenv.Dir) == "" {
		if err := os.Setenv(testenv.Dir, dir); err != nil { // ours, and the command's
			return 1, fmt.Errorf("testservers: %w", err)
		}
	}
	// A Ctrl-C goes to the command too: it ends by itself, and then we do.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, os.Environ()
	var starting sync.WaitGroup
	var pg *testenv.PostgresServer
	var mq *testenv.RabbitMQServer
	if os.Getenv("WAYBILL_TEST_POSTGRES") == "" {
		starting.Go(func() {
			var err error
			if pg, err = testenv.StartPostgres(ctx, testenv.PostgresOptions{Settings: noSync}); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	if os.Getenv("WAYBILL_TEST_RABBITMQ") == "" {
		starting.Go(func() {
			var err error
			if mq, err = testenv.StartRabbitMQ(ctx, testenv.RabbitMQOptions{}); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	starting.Wait()
	if pg != nil {
		defer func() { _ = pg.Close() }()
		cmd.Env = append(cmd.Env, "WAYBILL_TEST_POSTGRES="+pg.DSN("postgres"))
	}
	if mq != nil {
		defer func() { _ = mq.Close() }()
		cmd.Env = append(cmd.Env, "WAYBILL_TEST_RABBITMQ="+mq.AMQPURL("/"), "WAYBILL_TEST_RABBITMQ_MANAGEMENT="+mq.ManagementURL)
	}
	if ctx.Err() != nil {
		return 130, nil
	}
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, fmt.Errorf("testservers: %w", err)
	}
	return 0, nil
}
