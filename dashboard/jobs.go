package dashboard

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

const maxJobs = 100

// jobs are the actions that run or have ended.
type jobs struct {
	mu    sync.Mutex
	all   map[string]*job
	order []string
}

// job is one action.
type job struct {
	id, title string
	begun     time.Time
	done      chan struct{}

	mu    sync.Mutex
	text  string
	bad   bool
	ended bool
	ids   []string // what it has changed, as far as the store tells; at most maxIDs
}

// maxIDs is how many ids the log has of one action.
const maxIDs = 100

func (js *jobs) begin(title string) (*job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.all == nil {
		js.all = map[string]*job{}
	}
	for len(js.order) >= maxJobs {
		if oldest := js.all[js.order[0]]; !oldest.over() {
			return nil, &refused{http.StatusTooManyRequests, "Too many actions run: wait until some have ended."}
		}
		delete(js.all, js.order[0])
		js.order = js.order[1:]
	}
	j := &job{id: rand.Text(), title: title, begun: time.Now(), done: make(chan struct{})}
	js.all[j.id] = j
	js.order = append(js.order, j.id)
	return j, nil
}

func (j *job) over() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ended
}

func (j *job) progress(format string, a ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = fmt.Sprintf(format, a...)
}

// said returns the latest progress.
func (j *job) said() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text
}

// result notes the result, and returns it in words.
func (j *job) result(err error) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.bad = true
		if j.text != "" {
			j.text += "; then: "
		}
		j.text += core.ErrorText(err)
	}
	if j.text == "" {
		j.text = "It is done."
	}
	return j.text
}

// change notes a message that was changed.
func (j *job) change(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ids) < maxIDs {
		j.ids = append(j.ids, clip(id, 200))
	}
}

// changed lists the messages that were changed.
func (j *job) changed() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.ids)
}

func (j *job) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	close(j.done)
}

func (j *job) wait(ctx context.Context, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-j.done:
	case <-t.C:
	case <-ctx.Done():
	}
}

// jobData shows a job.
type jobData struct {
	Title, Text string
	Bad, Ended  bool
	For         time.Duration
}

func (d *Dashboard) job(w http.ResponseWriter, r *http.Request) error {
	d.jobs.mu.Lock()
	j := d.jobs.all[r.PathValue("id")]
	d.jobs.mu.Unlock()
	if j == nil {
		return &notFound{"This action is not known any more."}
	}
	j.mu.Lock()
	data := &jobData{Title: j.title, Text: j.text, Bad: j.bad, Ended: j.ended, For: time.Since(j.begun)}
	j.mu.Unlock()
	if !data.Ended {
		w.Header().Set("Refresh", "1")
	}
	return d.render(w, r, http.StatusOK, "job", data)
}
