package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed static templates
var files embed.FS

// Dashboard is the page. It is an http.Handler for everything below Options.Path.
type Dashboard struct {
	opts      Options
	pages     map[string]*template.Template
	mux       http.Handler
	sessions  sessions
	token     string // of SignInURL; empty = there is another way in
	people    atomic.Pointer[people]
	passwords passwords
	brakes    brakes
	state     state
	jobs      jobs
	timeouts  timeouts
	log       *slog.Logger
}

// New returns a Dashboard. The error lists every problem of opts.
func New(opts Options) (*Dashboard, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	opts.Title = cmp.Or(opts.Title, "Waybill")
	d := &Dashboard{opts: opts, log: opts.Logger, pages: map[string]*template.Template{}, timeouts: defaultTimeouts}
	d.log = cmp.Or(d.log, slog.Default())
	d.sessions.init()
	d.sessions.passwordOf = d.passwordOf
	d.people.Store(newPeople(opts.Users))
	d.passwords = passwords{comparing: make(chan struct{}, maxComparing)}
	if len(d.people.Load().passwords) == 0 && !opts.Open && opts.Proxy.UserHeader == "" {
		d.token = rand.Text()
	}
	layout := template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html"))
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		page := strings.TrimSuffix(strings.TrimPrefix(name, "templates/"), ".html")
		if page != "layout" && page != "parts" {
			d.pages[page] = template.Must(template.Must(layout.Clone()).ParseFS(files, name))
		}
	}
	d.state.watches = make([]watch, len(opts.Outboxes))
	d.mux = d.routes()
	return d, nil
}

func (d *Dashboard) routes() http.Handler {
	mux := http.NewServeMux()
	page := func(pattern string, fn func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := fn(w, r); err != nil {
				d.fail(w, r, err)
			}
		})
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux.Handle("GET /static/{file}", http.StripPrefix("/static/", http.FileServerFS(static)))
	page("GET /{$}", d.overview)
	page("GET /live", d.live)
	page("GET /messages", d.messages)
	page("GET /message", d.message)
	page("GET /keys", d.keys)
	page("GET /parked", d.parked)
	page("GET /parked/message", d.parkedMessage)
	page("GET /schedule", d.schedule)
	page("GET /jobs/{id}", d.job)
	page("GET /login", d.loginPage)
	page("POST /login", d.login)
	page("POST /logout", d.logout)
	if !d.opts.ReadOnly {
		page("POST /preview", d.preview)
		page("POST /do", d.do)
	}
	page("/", func(http.ResponseWriter, *http.Request) error { return &notFound{"There is no such page."} })
	return d.guard(mux)
}

// ServeHTTP serves the page.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "+
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if d.opts.Path == "" {
		d.mux.ServeHTTP(w, r)
		return
	}
	if r.URL.Path == d.opts.Path {
		http.Redirect(w, r, d.opts.Path+"/", http.StatusMovedPermanently) //nolint:gosec // the path is the option's
		return
	}
	http.StripPrefix(d.opts.Path, d.mux).ServeHTTP(w, r)
}

// Run keeps the history of the charts while no browser looks, until ctx ends. It costs the stores one set of questions
// in five seconds. The collection of Options.Metrics asks them nothing more.
func (d *Dashboard) Run(ctx context.Context) error {
	t := time.NewTicker(5 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			d.look(ctx)
		}
	}
}

// frame is what every page has.
type frame struct {
	Title, Base, Page, User, Token string
	LogOut                         bool
	Outboxes                       []Outbox
	Queues                         []Queue
	ReadOnly                       bool
	Problem                        string
	Data                           any
}

// render writes a page, or nothing if it fails.
func (d *Dashboard) render(w http.ResponseWriter, r *http.Request, status int, page string, data any) error {
	f := d.frame(r, page, data)
	var b bytes.Buffer
	if err := d.pages[page].ExecuteTemplate(&b, "layout", f); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
	return nil
}

func (d *Dashboard) frame(r *http.Request, page string, data any) *frame {
	s := sessionOf(r)
	return &frame{
		Title: d.opts.Title, Base: d.opts.Path, Page: page, User: s.user, Token: s.token, LogOut: s.in && (s.via == viaToken || s.via == viaPassword),
		Outboxes: d.opts.Outboxes, Queues: d.opts.Queues, ReadOnly: !s.may(RightAct), Data: data,
	}
}

// outbox returns the outbox that a request names, or the first.
func (d *Dashboard) outbox(r *http.Request) (*Outbox, error) {
	name := r.FormValue("outbox")
	for i := range d.opts.Outboxes {
		if b := &d.opts.Outboxes[i]; b.Name == name || name == "" {
			return b, nil
		}
	}
	return nil, &notFound{fmt.Sprintf("There is no outbox %q here.", name)}
}

func (d *Dashboard) queue(r *http.Request) (*Queue, error) {
	name := r.FormValue("queue")
	for i := range d.opts.Queues {
		if q := &d.opts.Queues[i]; q.Name == name || name == "" {
			return q, nil
		}
	}
	return nil, &notFound{fmt.Sprintf("There is no queue %q here.", name)}
}
