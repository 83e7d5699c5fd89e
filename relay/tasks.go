package relay

// tasks runs blocking calls on goroutines of their own and brings back what they came to. The loop alone starts them;
// ask alone may be called from any goroutine.
type tasks struct {
	results    chan func()        // what calls came to, to be run by the loop
	work       chan func() func() // what an idle goroutine takes up; see async
	requests   chan func()        // what others want done on the loop
	closed     chan struct{}      // closed when nobody reads results any more
	inProgress int                // calls
}

func newTasks() tasks {
	return tasks{results: make(chan func()), work: make(chan func() func()), requests: make(chan func()), closed: make(chan struct{})}
}

// async runs work on another goroutine and then, on the loop, what it returns. It runs on a goroutine that has done so
// before, if one is idle: its stack has grown already.
func (t *tasks) async(work func() (then func())) {
	t.inProgress++
	select {
	case t.work <- work:
	default:
		go t.worker(work)
	}
}

// worker runs work, and what else comes, until the loop has ended.
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

// ask runs f on the loop and returns when that is done. It reports whether it was: not if the loop has ended or is
// ended by giveUp.
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
