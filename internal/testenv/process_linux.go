package testenv

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sigKill = syscall.SIGKILL
	sigInt  = syscall.SIGINT
	sigTerm = syscall.SIGTERM
	sigHup  = syscall.SIGHUP
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// background runs what lives as long as the process; its name is exported as Background for leak checks.
func background(fn func()) { fn() }

// spawner returns the queue of the one goroutine that starts all children. It keeps its OS thread for ever, because the
// kernel sends the parent death signal when the *thread* that forked ends.
var spawner = sync.OnceValue(func() chan<- func() {
	queue := make(chan func())
	go background(func() {
		runtime.LockOSThread()
		for fn := range queue {
			fn()
		}
	})
	return queue
})

// account is a system user that a server runs as, and its root file system, "" for the usual one; nil stands for the
// current user.
type account struct {
	uid, gid int
	root     string
}

func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("waybill/testenv: %w", err)
	}
	return nil
}

// here is the same user in the usual root file system.
func (a *account) here() *account {
	if a == nil {
		return nil
	}
	return &account{uid: a.uid, gid: a.gid}
}

func (a *account) attr() *syscall.SysProcAttr {
	// own group: a Ctrl-C is for the test, not for its servers
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
		attr.Chroot = a.root
	}
	return attr
}

// unprivileged returns the account for a server that refuses to run as root, or nil when the current user will do.
func unprivileged(names ...string) (*account, error) {
	if os.Getuid() != 0 {
		return nil, nil // nil is the current user
	}
	if root := serversRoot(); root != "" {
		return accountIn(root, names[0])
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			return &account{uid: uid, gid: gid}, nil
		}
	}
	return nil, fmt.Errorf("waybill/testenv: no user %s to run the server as", strings.Join(names, ", "))
}

// accountIn returns an account of another root file system: its numbers are others there.
func accountIn(root, name string) (*account, error) {
	all, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: %w", err)
	}
	for line := range strings.Lines(string(all)) {
		fields := strings.Split(line, ":")
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		uid, err1 := strconv.Atoi(fields[2])
		gid, err2 := strconv.Atoi(fields[3])
		if err1 == nil && err2 == nil {
			return &account{uid: uid, gid: gid, root: root}, nil
		}
	}
	return nil, fmt.Errorf("waybill/testenv: no user %s in %s", name, root)
}

// brokerIn is who a broker runs as: the current user, in a root file system, "" for the usual one.
func brokerIn(root string) *account {
	if root == "" {
		return nil
	}
	return &account{uid: os.Getuid(), gid: os.Getgid(), root: root}
}

// process is a running child that dies with this process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was waited for
}

// start starts a command in dir, with exactly this environment, its output appended to the file log.
func start(as *account, dir, log string, env []string, name string, args ...string) (*process, error) {
	return startOn(nil, as, dir, log, env, name, args...)
}

// startOnOneCPU is start on one of this process's CPUs.
func startOnOneCPU(as *account, dir, log string, env []string, name string, args ...string) (*process, error) {
	return startOn(oneCPU(), as, dir, log, env, name, args...)
}

// oneCPU returns one of the CPUs that this process may use, or nil if it cannot find out.
func oneCPU() *unix.CPUSet {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() == 0 {
		return nil
	}
	for nth, cpu := mathrand.IntN(all.Count()), 0; ; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if nth == 0 {
			one.Set(cpu)
			return &one
		}
		nth--
	}
}

func startOn(cpus *unix.CPUSet, as *account, dir, log string, env []string, name string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: %w", err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(name, args...) // it outlives the caller's context; the command is ours
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, out, out
	cmd.SysProcAttr = as.attr()
	started := make(chan error)
	spawner() <- func() {
		var mine unix.CPUSet
		// of this thread; the child inherits it
		if cpus != nil && unix.SchedGetaffinity(0, &mine) == nil && unix.SchedSetaffinity(0, cpus) == nil {
			defer func() { _ = unix.SchedSetaffinity(0, &mine) }()
		}
		started <- cmd.Start()
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("waybill/testenv: start %s: %w", filepath.Base(name), err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go background(func() {
		_ = cmd.Wait()
		close(p.done)
	})
	return p, nil
}

// run starts a command and waits for it. A failure carries the end of its output.
func run(ctx context.Context, as *account, dir string, env []string, name string, args ...string) error {
	r, err := workRoot()
	if err != nil {
		return err
	}
	log := filepath.Join(r.dir, randomName("run-"))
	defer func() { _ = os.Remove(log) }()
	p, err := start(as, dir, log, env, name, args...)
	if err != nil {
		return err
	}
	if err := p.wait(ctx); err != nil {
		p.kill()
		return err
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("waybill/testenv: %s: exit code %d: %s", filepath.Base(name), code, tail(log))
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waybill/testenv: waiting for %s: %w", filepath.Base(p.cmd.Path), ctx.Err())
	}
}

// signal sends sig to the process. After sigStop it waits until the process stands still.
func (p *process) signal(sig syscall.Signal) {
	if p.ended() {
		return
	}
	_ = p.cmd.Process.Signal(sig)
	if sig == sigStop {
		p.standStill(p.cmd.Process.Pid)
	}
}

// standStill waits until no thread of pid runs any more, at most ten seconds. A signal that stops a process returns
// before its threads have stopped: on a busy machine they can answer a client in between.
func (p *process) standStill(pid int) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && !p.ended(); {
		if stopped(pid) {
			return
		}
		runtime.Gosched()
	}
}

// stopped reports whether all threads of pid are stopped. A process that is gone has none.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		_, after, _ := strings.Cut(string(stat), ") ") // the name in front may hold anything
		if !strings.HasPrefix(after, "T") && !strings.HasPrefix(after, "Z") {
			return false
		}
	}
	return true
}

// signalAll sends sig to the process and its direct children: a PostgreSQL backend goes on working when only the
// postmaster is stopped.
func (p *process) signalAll(sig syscall.Signal) {
	if p.ended() {
		return
	}
	pid := p.cmd.Process.Pid
	var children []int
	list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for field := range strings.FieldsSeq(string(list)) {
		if n, err := strconv.Atoi(field); err == nil {
			children = append(children, n)
		}
	}
	_ = p.cmd.Process.Signal(sig)
	for _, child := range children {
		_ = syscall.Kill(child, sig)
	}
	if sig == sigStop {
		for _, each := range append(children, pid) {
			p.standStill(each)
		}
	}
}

// kill ends the process and its direct children with SIGKILL and waits until the kernel is done with it.
func (p *process) kill() {
	p.signalAll(sigKill)
	<-p.done
}

// stop asks the process to end, and kills it after a time.
func (p *process) stop(sig syscall.Signal, limit time.Duration) {
	p.signalAll(sigCont) // a paused one would not hear it
	p.signal(sig)
	select {
	case <-p.done:
	case <-time.After(limit):
		p.kill()
	}
}

// reserve takes a port for this process, among all that use this package: an abstract socket's name is taken once, and
// is free again when its process ends, however it ends.
func reserve(port int) (net.Listener, bool) {
	l, err := net.Listen("unix", "@waybill-testenv-port-"+strconv.Itoa(port))
	return l, err == nil
}

// stopListening ends l at once. To close it is not enough: a process that starts at this moment has its socket, too,
// until its program runs.
func stopListening(l net.Listener) {
	if c, ok := l.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
		}
	}
	_ = l.Close()
}

// left returns the bytes that are left in a file system.
func left(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) != syscall.ESRCH }

// guardScript waits until the pipe from the owner ends, which is when the owner is gone, however it ended. The servers
// get their death signal at the same moment, but a process that a broker's script has just started does not: it would
// go on, and start a name server that stays. So the guard kills Erlang's processes that have the folder in their
// environment, until it has found none for half a second. It removes the shared memory that a killed PostgreSQL cannot
// remove (its id is in postmaster.pid), the file systems that are mounted below the folder, then the folder.
const guardScript = `cat >/dev/null
for f in "$1"/postgres-*/data/postmaster.pid; do
	[ -e "$f" ] && id=$(sed -n 7p "$f" | awk '{print $2}') && [ -n "$id" ] && ids="$ids $id"
done
n=0 quiet=0
while sleep 0.1; n=$((n+1)) quiet=$((quiet+1)); do
	for p in /proc/[0-9]*; do
		{ read -r comm <"$p/comm"; } 2>/dev/null || continue
		case $comm in epmd | beam.smp | erl* | rabbitmq*)
			grep -qsF "$1/" "$p/environ" && kill -9 "${p#/proc/}" 2>/dev/null && quiet=0
		esac
	done
	for m in $(awk -v dir="$1/" 'index($2, dir) { print $2 }' /proc/mounts); do umount -l "$m" 2>/dev/null; done
	rm -rf "$1" 2>/dev/null
	{ [ -e "$1" ] || [ $quiet -lt 5 ]; } && [ $n -lt 50 ] || break
done
for id in $ids; do ipcrm -m "$id" 2>/dev/null; done
exit 0`

// startGuard starts a shell that outlives this process by a moment and removes dir after it. The caller keeps the file
// open as long as it lives.
func startGuard(dir string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: guard: %w", err)
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("/bin/sh", "-c", guardScript, "waybill-testenv-guard", dir) // it outlives us on purpose
	cmd.Dir, cmd.Stdin = "/", r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("waybill/testenv: guard: %w", err)
	}
	return w, cmd.Process.Release()
}

// removeSharedMemory removes the System V segment of a PostgreSQL that was killed. Its id is in the seventh line of
// postmaster.pid, which is gone after an orderly stop.
func removeSharedMemory(pidFile string) {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 7 {
		return
	}
	if fields := strings.Fields(lines[6]); len(fields) == 2 {
		if id, err := strconv.Atoi(fields[1]); err == nil {
			_, _, _ = syscall.Syscall(syscall.SYS_SHMCTL, uintptr(id), 0 /* IPC_RMID */, 0)
		}
	}
}
