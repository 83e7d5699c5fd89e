package relay

// tasks runs blocking calls on goroutines of their own and brings back their results. Only the loop starts them. Only
// ask may be called from any goroutine.
type tasks struct {
	results    chan func()        // results of calls, to be run by the loop
	work       chan func() func() // work for an idle goroutine; see async
	requests   chan func()        // functions that others want to run on the loop
	closed     chan struct{}      // closed when nobody reads results any more
	inProgress int                // calls
}

func newTasks() tasks {
	return tasks{results: make(chan func()), work: make(chan func() func()), requests: make(chan func()), closed: make(chan struct{})}
}

// async runs work on another goroutine and then runs the returned function on the loop. It uses an idle goroutine if
// there is one: its stack has grown already.
func (t *tasks) async(work func() (then func())) {
	t.inProgress++
	select {
	case t.work <- work:
	default:
		go t.worker(work)
	}
}

// worker runs work, and then more work, until the loop has ended.
func (t *tasks) worker(work func() (then func())) {
	for {
		then := work()
		select {
		case t.results <- then:
		case <-t.closed:
			return
		}
		select {
		case work = <-t.work:
		case <-t.closed:
			return
		}
	}
}

// ask runs f on the loop and returns when f has run. It returns false if the loop has ended or was ended by giveUp.
func (t *tasks) ask(giveUp <-chan struct{}, f func()) bool {
	done := make(chan struct{})
	select {
	case t.requests <- func() { f(); close(done) }:
	case <-t.closed:
		return false
	case <-giveUp:
		return false
	}
	select {
	case <-done:
		return true
	case <-t.closed:
		return false
	}
}
