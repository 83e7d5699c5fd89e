package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli/config"
)

// The exit codes of the command.
const (
	ExitOK       = 0 // it did what was asked
	ExitFailed   = 1 // it failed: something is down, or an error that has no code of its own
	ExitUsage    = 2 // the arguments or the configuration are wrong; nothing was done
	ExitNotFound = 3 // there is no such message, key, queue or parked message
	ExitRefused  = 4 // it was refused, or is not done yet: in flight, out of order, declined at the prompt
	ExitFindings = 5 // it works, and found something: differences, a failed check, messages that wait
)

// exit is an error with an exit code.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string { return e.err.Error() }
func (e *exit) Unwrap() error { return e.err }

func withCode(code int, format string, a ...any) error { return &exit{code, fmt.Errorf(format, a...)} }

// codeOf returns the exit code for an error.
func codeOf(err error) int {
	var e *exit
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, waybill.ErrInvalid):
		return ExitUsage
	case errors.Is(err, waybill.ErrNotFound):
		return ExitNotFound
	case errors.Is(err, waybill.ErrInFlight):
		return ExitRefused
	}
	return ExitFailed
}

// command is one run of the command.
type command struct {
	app *App
	io  IO

	// the flags of every command
	file    string
	set     []string
	json    bool
	yes     bool
	timeout time.Duration

	progress bool // of the commands that show it

	acts   line
	conf   *loaded
	opened []func(context.Context) error // closes what was opened
}

// Run runs the command with args, without the name of the program, and returns its exit code. It returns soon after ctx
// ended.
func (a App) Run(ctx context.Context, args []string, outside IO) int {
	c := &command{app: &a, io: outside}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(outside.In)
	root.SetOut(outside.Out)
	root.SetErr(outside.Err)
	err := root.ExecuteContext(ctx)
	c.close(context.WithoutCancel(ctx))
	if err != nil {
		c.tell(err)
	}
	return codeOf(err)
}

// Command returns the tree of commands, for tools that document it. It must not be executed.
func (a App) Command() *cobra.Command {
	return (&command{app: &a, io: IO{Out: io.Discard, Err: io.Discard}}).root()
}

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "waybill",
		Short: "move messages from outboxes to brokers, and look after them",
		Long: `waybill relay moves messages from the outboxes of databases to brokers. The other commands show and repair
messages. The settings come from a YAML file, from the environment and from --set, in one naming; see waybill config.

Exit codes: 0 done; 1 failed; 2 wrong arguments or configuration; 3 not found; 4 refused or not done yet; 5 done, and
something was found (differences, failed checks, waiting messages).`,
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	f := root.PersistentFlags()
	f.StringVar(&c.file, "config", "", "file with the settings; default $WAYBILL_CONFIG, or waybill.yaml if it is there")
	f.StringArrayVar(&c.set, "set", nil, "a setting as path=value, such as log.level=debug; repeatable. Others see it in the list of processes: keep passwords in files")
	f.BoolVar(&c.json, "json", false, "output for programs")
	f.BoolVarP(&c.yes, "yes", "y", false, "do not ask before something is destroyed")
	f.DurationVar(&c.timeout, "timeout", 30*time.Second, "how long one question to a store or a broker may take")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if c.timeout <= 0 {
			return withCode(ExitUsage, "--timeout: %s is no time to wait: give one above 0", c.timeout)
		}
		return nil
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exit{ExitUsage, err} })
	root.AddCommand(c.relayCommand(), c.validateCommand(), c.versionCommand(), c.configCommand())
	root.AddCommand(c.operatorCommands()...)
	root.Args = choose("waybill", root.Commands())
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, cmd := range root.Commands() {
		usage(cmd)
	}
	return root
}

// usage gives mistakes in the arguments of cmd, and of the commands below it, their exit code.
func usage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &exit{ExitUsage, fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		usage(sub)
	}
}

// tell shows an error.
func (c *command) tell(err error) {
	if e, ok := asInvalid(err); ok && len(e.Problems) > 1 {
		say(c.io.Err, "%s: %d problems\n", e.Subject, len(e.Problems))
		for _, p := range e.Problems {
			say(c.io.Err, "  %s\n", clean(p))
		}
		return
	}
	say(c.io.Err, "error: %s\n", cleanLines(err.Error()))
	if errors.Is(err, context.DeadlineExceeded) {
		say(c.io.Err, "that took longer than --timeout (%s): give a longer one if the server answers, but slowly\n", c.timeout)
	}
}

// close closes what the command opened, within five seconds.
func (c *command) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, fn := range c.opened {
		if err := fn(ctx); err != nil {
			c.logger().Warn("cannot close", "error", err)
		}
	}
	c.opened = nil
}

// load reads the configuration, once.
func (c *command) load() (*loaded, error) {
	if c.conf != nil {
		return c.conf, nil
	}
	src := c.sources()
	conf, err := c.app.load(src)
	if err != nil {
		return nil, err
	}
	c.conf = conf
	return conf, nil
}

// sources says where this run's settings come from.
func (c *command) sources() config.Sources {
	file := c.file
	for _, v := range c.io.Environ {
		if value, ok := strings.CutPrefix(v, "WAYBILL_CONFIG="); ok && file == "" {
			file = value
		}
	}
	if file == "" {
		if _, err := os.Stat("waybill.yaml"); err == nil {
			file = "waybill.yaml"
		}
	}
	return config.Sources{File: file, Environ: c.io.Environ, Skip: reserved, Set: c.set}
}

// logger is the log of the configuration, to standard error.
func (c *command) logger() *slog.Logger {
	var conf logSettings
	if c.conf != nil {
		conf = c.conf.Log
	}
	return newLogger(c.io.Err, conf, new(slog.LevelVar))
}

// newLogger returns a log whose level can be changed.
func newLogger(w io.Writer, conf logSettings, level *slog.LevelVar) *slog.Logger {
	setLevel(level, conf)
	opts := &slog.HandlerOptions{Level: level}
	if conf.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func setLevel(level *slog.LevelVar, conf logSettings) {
	level.Set(slog.LevelInfo)
	if conf.Level != "" {
		_ = level.UnmarshalText([]byte(conf.Level)) // it was checked
	}
}

// quiet is what adapters of a command get that asks and ends: their warnings, no telemetry.
func (c *command) quiet() Env {
	return Env{
		Logger:        slog.New(slog.NewTextHandler(c.io.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
		MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider(),
	}
}

// limited bounds one question.
func (c *command) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// openStore opens the store with this name, or the only one. One of many outboxes must be chosen.
func (c *command) openStore(ctx context.Context, name string, env Env) (*Store, error) {
	s, err := c.openStores(ctx, name, env)
	if err == nil && s.Outbox == nil {
		name = the(name, c.conf.stores)
		return nil, withCode(ExitUsage, "store %s has many outboxes: choose one, with --set stores.%s.schema=NAME", name, name)
	}
	return s, err
}

// openStores opens the store with this name, or the only one, of which Outbox may be nil.
func (c *command) openStores(ctx context.Context, name string, env Env) (*Store, error) {
	conf, err := c.load()
	if err != nil {
		return nil, err
	}
	if name, err = only("store", name, conf.stores); err != nil {
		return nil, err
	}
	kind := conf.Stores[name].Text("kind")
	for i := range c.app.Stores {
		if k := &c.app.Stores[i]; k.name == kind {
			s, err := k.open(ctx, conf.stores[name], env)
			if err != nil {
				return nil, conf.opening("stores."+name, err)
			}
			c.opened = append(c.opened, s.Close)
			return s, nil
		}
	}
	return nil, fmt.Errorf("no kind %s", kind) // load has checked
}

// openTransport opens the transport with this name, or the only one.
func (c *command) openTransport(ctx context.Context, name string, env Env) (*Transport, error) {
	conf, err := c.load()
	if err != nil {
		return nil, err
	}
	if name, err = only("transport", name, conf.transports); err != nil {
		return nil, err
	}
	kind := conf.Transports[name].Text("kind")
	for i := range c.app.Transports {
		if k := &c.app.Transports[i]; k.name == kind {
			t, err := k.open(ctx, conf.transports[name], env)
			if err != nil {
				return nil, conf.opening("transports."+name, err)
			}
			c.opened = append(c.opened, t.Close)
			return t, nil
		}
	}
	return nil, fmt.Errorf("no kind %s", kind) // load has checked
}

// opening says which setting an adapter could not be opened with.
func (l *loaded) opening(path string, err error) error {
	if e, ok := asInvalid(err); ok {
		var p []string
		for _, text := range e.Problems {
			key, text := relayProblem(text)
			if key != "" {
				key = "." + key
			}
			p = append(p, l.from.Problem(path+key, "%s", text))
		}
		return waybill.Invalid("waybill: configuration", p...)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// only returns name, or the only one there is.
func only(what, name string, among map[string]any) (string, error) {
	_, ok := among[name]
	switch {
	case ok:
		return name, nil
	case len(among) == 0:
		return "", withCode(ExitUsage, "the configuration has no %s: add one to %ss, in a file (--config) or with --set", what, what)
	case name == "" && len(among) == 1:
		return sortedKeys(among)[0], nil
	case name == "":
		return "", withCode(ExitUsage, "name a %s with --%s: %s", what, what, strings.Join(sortedKeys(among), ", "))
	}
	return "", withCode(ExitUsage, "there is no %s %q: choose of %s", what, name, strings.Join(sortedKeys(among), ", "))
}
